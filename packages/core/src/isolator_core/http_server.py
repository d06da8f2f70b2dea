"""A small HTTP server for probes and metrics: `answer` says what a path gives, threads keep slow clients apart."""

import contextvars
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog

from isolator_core.errors import UserError

IDLE_SECONDS = 30

_log = structlog.get_logger()

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


def make_server(address: str, port: int, answer: Callable[[str, str], Answer]) -> ThreadingHTTPServer:
    """A server, listening; `answer(path, accept)` answers a GET. Raises UserError if the port cannot be had."""

    # A request's thread knows nothing of what every line of the log carries.
    context = contextvars.copy_context()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "kai-resource-isolator"
        sys_version = ""
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            try:
                status, content_type, body = answer(path, self.headers.get("Accept", ""))
            except Exception:
                context.copy().run(_log.exception, "answer_failed", path=path)
                status, content_type, body = text(500, "this is a fault of the program, and in its log")
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815, the name is http.server's

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a line a scrape is noise."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is no error of ours."""

    try:
        return Server((address, port), Handler)
    except OSError as error:
        raise UserError(f"cannot listen on {address}:{port}: {error.strerror}") from error


def text(status: int, body: str) -> Answer:
    """A short answer for people and probes."""
    return status, "text/plain; charset=utf-8", f"{body}\n".encode()
