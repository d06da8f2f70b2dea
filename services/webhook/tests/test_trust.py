"""Ready once the API server trusts what is served: the handshake that tells, and a server that waits for it."""

import base64
import contextlib
import datetime
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from isolator_testing.certificates import Authority, Issued
from isolator_testing.processes import running
from isolator_webhook import trust
from isolator_webhook.certificate import load, make_context

HOST = "isolator-webhook.gpu.svc"
WAIT_SECONDS = 60
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/isolator-mutating"


def serving(issued: Issued) -> ssl.SSLContext:
    context = make_context()
    load(context, issued.certificate, issued.key)
    return context


def webhook(bundle: bytes | None, name: str = "a") -> dict[str, Any]:
    given = {} if bundle is None else {"caBundle": base64.b64encode(bundle).decode()}
    return {"name": name, "clientConfig": given}


def test_what_a_client_would_accept() -> None:
    authority, other = Authority(), Authority()
    issued = authority.issue(HOST)
    context = serving(issued)
    assert trust.accepts(authority.certificate, context, HOST)
    assert trust.accepts(other.certificate + authority.certificate, context, HOST)
    assert trust.accepts(issued.certificate, context, HOST), "Go takes a certificate of the bundle itself for an anchor"
    assert not trust.accepts(other.certificate, context, HOST)
    assert not trust.accepts(authority.certificate, context, "other.gpu.svc")
    expired = serving(authority.issue(HOST, life=datetime.timedelta(seconds=-60)))
    assert not trust.accepts(authority.certificate, expired, HOST)


@pytest.mark.parametrize(
    "bundle", [b"", b"nonsense", b"\xff", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"]
)
def test_a_bundle_that_is_none_accepts_nothing(bundle: bytes) -> None:
    assert not trust.accepts(bundle, serving(Authority().issue(HOST)), HOST)


def test_every_webhook_has_to_trust() -> None:
    authority = Authority()
    context, right = serving(authority.issue(HOST)), webhook(authority.certificate)
    assert trust.distrust([], context, HOST) is None
    assert trust.distrust([right, right], context, HOST) is None
    assert "b has no caBundle" in str(trust.distrust([right, webhook(None, "b")], context, HOST))
    assert "webhook b the served certificate is not one for" in str(
        trust.distrust([right, webhook(Authority().certificate, "b")], context, HOST)
    )
    assert "b is not base64" in str(
        trust.distrust([right, {"name": "b", "clientConfig": {"caBundle": "!"}}], context, HOST)
    )


class ApiServer:
    """A configuration that a test changes, and a status to answer with in its place."""

    def __init__(self) -> None:
        self.webhooks: list[Any] = []
        self.status = 200
        self.url = ""


@pytest.fixture
def api() -> Iterator[ApiServer]:
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.path == CONFIGURATION and self.headers["Authorization"] == "Bearer secret"
            status = state.status if right else 404
            content = {"webhooks": state.webhooks} if status == 200 else {"message": "you may not"}
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield state
        server.shutdown()


class Server:
    """A running webhook with a certificate of its own."""

    def __init__(self, process: "subprocess.Popen[str]", authority: Authority) -> None:
        self.lines: list[Any] = []
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        self.until("listening")
        port = next(line["port"] for line in self.lines if line["event"] == "listening")
        self._url, self._context = f"https://127.0.0.1:{port}/readyz", authority.client()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        self.lines.extend(json.loads(line) for line in process.stderr)

    def until(self, event: str, reason: str = "") -> float:
        """Wait for a log line, and tell when it was seen."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not any(line["event"] == event and reason in line.get("reason", "") for line in list(self.lines)):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)
        return time.monotonic()

    def ready(self) -> tuple[int, str]:
        answer = httpx.get(self._url, verify=self._context, timeout=WAIT_SECONDS)
        return answer.status_code, answer.text


@contextlib.contextmanager
def server(api: ApiServer, directory: Path, authority: Authority, *arguments: str) -> Iterator[Server]:
    token = directory / "token"
    token.write_text("secret\n")
    pair = authority.issue("127.0.0.1", HOST).write(directory)
    command = [
        sys.executable, "-m", "isolator_webhook", "serve", "--certificate-file", str(pair.certificate),
        "--key-file", str(pair.key), "--listen-address", "127.0.0.1", "--listen-port", "0", "--metrics-port", "0",
        "--vramd-address", "127.0.0.1:1", "--drain-seconds", "0", "--namespace", "gpu", "--api-url", api.url,
        "--api-token-file", str(token), "--service-name", "isolator-webhook",
        "--webhook-configurations", "isolator-mutating", *arguments,
    ]  # fmt: skip
    with running(command, stderr=subprocess.PIPE) as process:
        yield Server(process, authority)


def test_not_ready_before_every_webhook_trusts_the_files(api: ApiServer, tmp_path: Path) -> None:
    authority = Authority()
    api.status = 403
    with server(api, tmp_path, authority) as started:
        started.until("not_trusted_yet", "403 you may not")
        status, reason = started.ready()
        assert status == 503
        assert "the API server to trust the certificate" in reason
        api.webhooks, api.status = [webhook(None)], 200
        started.until("not_trusted_yet", "a has no caBundle yet")
        api.webhooks = [webhook(Authority().certificate)]
        started.until("not_trusted_yet", f"not one for {HOST}")
        assert started.ready()[0] == 503
        before = time.monotonic()
        api.webhooks = [webhook(authority.certificate)]
        assert started.until("ready") - before >= trust.NOTICE_SECONDS
        assert started.ready() == (200, "ok\n")
        # Once ready it stays so: a rotation and a lost bundle are not for the probe to judge.
        api.webhooks = [webhook(None)]
        time.sleep(3 * trust.LOOK_SECONDS)
        assert started.ready() == (200, "ok\n")


def test_configurations_need_the_services_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isolator_webhook", "serve", "--webhook-configurations", "a"],
        capture_output=True, text=True, timeout=WAIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--service-name is required with --webhook-configurations" in done.stderr
