"""What the Node object says, and that a slow or failing API server holds up nothing."""

import http.server
import json
import threading
from pathlib import Path

import pytest

LABEL = "kai-resource-isolator.io/ready"
CONDITION = "KaiResourceIsolatorReady"
MARKS = ("--node-label", LABEL, "--node-condition", CONDITION)


def condition(api_server) -> dict[str, str]:
    return next((one for one in api_server.node["status"]["conditions"] if one["type"] == CONDITION), {})


def label(api_server) -> str | None:
    return api_server.node["metadata"].get("labels", {}).get(LABEL)


def test_the_node_says_that_it_is_right(start, keep, until, api_server) -> None:
    service = start(*keep, *MARKS, *api_server.flags)
    until(lambda: label(api_server) == "true", "labelled")
    until(lambda: condition(api_server).get("status") == "True", "condition set")
    assert condition(api_server)["reason"] == "Right"
    assert condition(api_server)["lastTransitionTime"]
    assert {one["type"] for one in api_server.node["status"]["conditions"]} == {"Ready", CONDITION}
    until(lambda: service.metric('isolator_libsync_node_updates_total{result="written"}') == 1, "counted")
    assert [method for method, _, _ in api_server.requests] == ["GET", "PATCH", "PATCH"]
    assert service.stop() == 0
    assert label(api_server) == "true"


def test_the_node_says_what_is_wrong(start, keep, until, api_server, host_dir: Path) -> None:
    host_dir.mkdir()
    (host_dir / "containers").write_text("in the way")
    start(*keep, *MARKS, *api_server.flags, "--region-dir")
    until(lambda: label(api_server) == "false", "labelled")
    until(lambda: condition(api_server).get("status") == "False", "condition set")
    assert condition(api_server)["reason"] == "WriteFailed"
    assert "containers: cannot make the directory: Not a directory" in condition(api_server)["message"]
    since = condition(api_server)["lastTransitionTime"]
    (host_dir / "containers").unlink()
    until(lambda: label(api_server) == "true", "labelled anew")
    until(lambda: condition(api_server)["status"] == "True", "condition set anew")
    assert condition(api_server)["lastTransitionTime"] >= since


def test_a_node_that_says_so_already_is_not_written(start, keep, until, api_server) -> None:
    start(*keep, *MARKS, *api_server.flags).read_until("node_marked")
    since = condition(api_server)["lastTransitionTime"]
    service = start(*keep, "--host-dir", api_server.token.parent / "other", *MARKS, *api_server.flags)
    until(lambda: len(api_server.requests) >= 4, "asked")
    assert [method for method, _, _ in api_server.requests] == ["GET", "PATCH", "PATCH", "GET"]
    assert condition(api_server)["lastTransitionTime"] == since
    assert service.metric('isolator_libsync_node_updates_total{result="written"}') == 0


def test_without_marks_the_api_is_not_asked(start, keep, until, api_server) -> None:
    service = start(*keep, *api_server.flags)
    until(lambda: service.get("/readyz")[0] == 200, "ready")
    assert service.stop() == 0
    assert api_server.requests == []


def test_a_refusing_api_server_is_said_and_tried_again(start, keep, until, api_server) -> None:
    api_server.fail = (403, {"kind": "Status", "message": 'nodes "gpu-1" is forbidden'})
    service = start(*keep, *MARKS, *api_server.flags)
    error = service.read_until("node_not_marked")["error"]
    assert error.endswith('/api/v1/nodes/gpu-1: 403 Forbidden: nodes "gpu-1" is forbidden')
    assert service.get("/readyz")[0] == 200
    assert service.metric('isolator_libsync_node_updates_total{result="failed"}') >= 1
    api_server.fail = None
    until(lambda: label(api_server) == "true", "labelled once the API server lets it")


def test_a_slow_api_server_does_not_hold_up_a_repair(start, keep, until, right, api_server, host_dir, library) -> None:
    api_server.delay_seconds = 8
    service = start(*keep, *MARKS, *api_server.flags)
    service.read_until("right")
    (host_dir / "libvgpu.so").unlink()
    until(lambda: right(host_dir, library), "repaired")
    assert label(api_server) is None
    assert service.stop() == 0


def test_a_renewed_token_is_used(start, keep, until, api_server) -> None:
    api_server.token.write_text("second-token\n")
    start(*keep, *MARKS, *api_server.flags)
    until(lambda: label(api_server) == "true", "labelled")


def test_a_server_with_another_certificate_is_not_trusted(start, keep, api_server) -> None:
    service = start(*keep, *MARKS, *api_server.flags, "--api-ca-file", "/etc/ssl/certs/ca-certificates.crt")
    assert "CERTIFICATE_VERIFY_FAILED" in service.read_until("node_not_marked")["error"]
    assert api_server.requests == []


def test_no_token_is_sent_without_tls(start, keep, until, api_server) -> None:
    """As through `kubectl proxy`, which brings the credentials itself."""
    seen: list[str | None] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            text = json.dumps({"metadata": {"labels": {LABEL: "true"}}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        start(*keep, "--node-label", LABEL, *api_server.flags, "--api-server", url)
        until(lambda: bool(seen), "asked")
        proxy.shutdown()
    assert seen == [None]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--node-label", LABEL], ["--node-name", "ISOLATOR_LIBSYNC_NODE_NAME", "--node-label"]),
        (["--node-label", "a b", "--node-name", "gpu-1"], ["--node-label", "'a b'", "qualified name"]),
        (["--node-condition", "/x", "--node-name", "gpu-1"], ["--node-condition", "'/x'"]),
        (["--node-label", LABEL, "--node-name", "../x"], ["--node-name", "'../x'"]),
        (["--node-label", LABEL, "--node-name", "gpu-1"], ["--api-server", "KUBERNETES_SERVICE_HOST"]),
        (["--api-server", "ftp://x"], ["--api-server", "'ftp://x'", "https://HOST:PORT"]),
        (["--api-server", "https://x:port"], ["--api-server", "'https://x:port'", "https://HOST:PORT"]),
    ],
)
def test_wrong_settings_end_with_2_and_one_line(libsync, keep, error_line, flags: list[str], words: list[str]) -> None:
    line = error_line(libsync("run", *keep, *flags, status=2))
    for word in words:
        assert word in line
