"""Mutating webhooks of the tests themselves: another party's admission in front of or behind the project's own."""

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonpatch
from tests.cluster.client import Cluster, Object
from tests.cluster.control_plane import ControlPlane

from isolator_testing.certificates import Authority

HOST = "localhost"


def _handler(change: Callable[[Object], Object]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            pod = review["request"]["object"]
            patch = jsonpatch.make_patch(pod, change(pod)).to_string().encode()
            response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch"}
            response["patch"] = base64.b64encode(patch).decode()
            body = json.dumps({key: review[key] for key in ("apiVersion", "kind")} | {"response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def mutating_webhook(
    cluster: Cluster,
    plane: ControlPlane,
    directory: Path,
    name: str,
    change: Callable[[Object], Object],
    condition: str,
) -> Iterator[None]:
    """Have pods at creation changed by `change`, where the CEL `condition` holds, for the time of a block.

    The API server calls mutating webhooks in the order of their configurations' names. `directory` is empty.
    """
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue(HOST).write(directory).load(context)
    # The socket is made where the API server is, and stays there.
    with plane.network.entered():
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(change))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    bundle = base64.b64encode(authority.certificate).decode()
    webhook: Object = {
        "name": f"{name}.tests.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "clientConfig": {"url": f"https://{HOST}:{server.server_address[1]}/", "caBundle": bundle},
        "rules": [rule],
        "matchConditions": [{"name": "of-this-test", "expression": condition}],
    }
    configuration: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    thread = threading.Thread(target=server.serve_forever, name=name)
    thread.start()
    try:
        cluster.create(configuration).ok()
        yield
    finally:
        cluster.delete(configuration)
        server.shutdown()
        server.server_close()
        thread.join()
