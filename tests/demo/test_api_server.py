"""What the demo's API server does with a webhook's answers."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.demo import services
from tests.demo.api_server import Refused, Webhook, admit, created, mutate
from tests.node.objects import Json

from isolator_testing.certificates import Authority

MANIFEST: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod", "namespace": "team"},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}
ADD_VOLUME = [{"op": "add", "path": "/spec/volumes", "value": [{"name": "v", "hostPath": {"path": "/x"}}]}]


@contextlib.contextmanager
def webhook(directory: Path, response: Json) -> Iterator[tuple[Webhook, list[Json]]]:
    """A webhook that always answers this, over TLS, and the reviews that it was sent."""
    authority = Authority()
    pair = authority.issue(services.ADDRESS).write(directory)
    reviews: list[Json] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reviews.append(review)
            body = json.dumps({"response": {"uid": review["request"]["uid"], **response}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = http.server.HTTPServer((services.ADDRESS, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair.load(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Webhook(f"https://{services.ADDRESS}:{server.server_address[1]}/mutate", authority.client()), reviews
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def patch(operations: list[Json]) -> Json:
    return {
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(json.dumps(operations).encode()).decode(),
    }


def test_patch_is_applied_and_defaults_are_filled(tmp_path: Path) -> None:
    with webhook(tmp_path, patch(ADD_VOLUME)) as (ours, reviews):
        pod = mutate(ours, created(MANIFEST))
    assert pod["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x", "type": ""}}]
    request = reviews[0]["request"]
    assert request["operation"] == "CREATE"
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["object"]["metadata"]["uid"] == pod["metadata"]["uid"] != request["uid"]


def test_denial_and_bad_patches_refuse_the_pod(tmp_path: Path) -> None:
    with (
        webhook(tmp_path, {"allowed": False, "status": {"message": "gpu-memory is 0"}}) as (ours, _),
        pytest.raises(Refused, match="denied the request: gpu-memory is 0"),
    ):
        mutate(ours, created(MANIFEST))
    append = [{"op": "add", "path": "/spec/volumes/-", "value": {}}]
    with webhook(tmp_path, patch(append)) as (ours, _), pytest.raises(Refused, match="does not apply"):
        mutate(ours, created(MANIFEST))


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    with webhook(tmp_path, patch([])) as (ours, _), pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"):
        mutate(Webhook(ours.url, Authority().client()), created(MANIFEST))


@pytest.mark.parametrize(("changes", "rounds"), [(True, 2), (False, 1)])
def test_webhook_is_asked_again_only_after_a_change(tmp_path: Path, changes: bool, rounds: int) -> None:
    def kai(pod: Json) -> Json:
        return {**pod, "spec": {**pod["spec"], "runtimeClassName": "nvidia"}} if changes else pod

    with webhook(tmp_path, {"allowed": True}) as (ours, reviews):
        admit(MANIFEST, ours, kai)
    assert len(reviews) == rounds
    assert reviews[-1]["request"]["object"]["spec"].get("runtimeClassName") == ("nvidia" if changes else None)
