"""A JSON server of the tests themselves, over TLS, where the API server reaches it: a webhook's or an API's."""

import base64
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.client import Object
from tests.cluster.network import Network

from isolator_testing.certificates import Authority

READ_SECONDS = 60
"""How long a connection may say nothing."""

STOP_SECONDS = 60

Answer = Callable[[str, Object], Object]
"""From a request's path with its query and its body, {} where it has none, to what is answered with status 200."""


@dataclass(frozen=True)
class Served:
    """Where a server listens, and the authority that its clients must trust: `caBundle` as Kubernetes wants it."""

    port: int
    ca_bundle: str


def _handler(answer: Answer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = READ_SECONDS

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Object) -> None:
            content = json.dumps(answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Server(http.server.ThreadingHTTPServer):
    """Handshakes in the thread of their connection: a client that says nothing holds up nobody else, nor the end."""

    def __init__(self, address: str, answer: Answer, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__((address, 0), _handler(answer))

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), client


@contextmanager
def serving(network: Network, address: str, host: str, directory: Path, answer: Answer) -> Iterator[Served]:
    """Answer requests at `address` in `network` with a certificate for `host`, for the time of a block.

    `directory` takes the certificate. Raises TimeoutError if the server does not end.
    """
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue(host).write(directory).load(context)
    # The socket is made where the API server is, and stays there.
    with network.entered():
        server = _Server(address, answer, context)
    thread = threading.Thread(target=server.serve_forever, name=host, daemon=True)
    thread.start()
    try:
        yield Served(server.server_address[1], base64.b64encode(authority.certificate).decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join(STOP_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"the server of {host} did not end within {STOP_SECONDS} s")
