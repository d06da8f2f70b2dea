"""The server as a process: TLS, its paths, its settings, its end."""

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import structlog

from isolator_testing.certificates import Authority, Pair, replace_at_next_read
from isolator_webhook.certificate import FileCertificate

WAIT_SECONDS = 60


AUTHORITY = Authority()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return AUTHORITY.issue().write(tmp_path_factory.mktemp("tls"))


def command(pair: Pair, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "isolator_webhook", "serve", "--listen-address", "127.0.0.1", "--listen-port", "0",
        "--certificate-file", str(pair.certificate), "--key-file", str(pair.key), "--vramd-address", "127.0.0.1:1",
        "--metrics-port", "0", "--drain-seconds", "0", *arguments,
    ]  # fmt: skip


@dataclass
class Running:
    process: subprocess.Popen[str]
    client: httpx.Client
    port: int
    metrics_port: int
    lines: list[Any]

    def metric(self, name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=WAIT_SECONDS).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def running(pair: Pair, *arguments: str) -> Iterator[Running]:
    with subprocess.Popen(command(pair, *arguments), stderr=subprocess.PIPE, text=True) as process:
        errors = process.stderr
        assert errors is not None
        lines: list[Any] = []
        reader = threading.Thread(target=lambda: lines.extend(json.loads(line) for line in errors), daemon=True)

        def port_of(event: str) -> int:
            until(lambda: any(line["event"] == event for line in lines) or process.poll() is not None)
            return int(next(line["port"] for line in lines if line["event"] == event))

        try:
            reader.start()
            port = port_of("listening")
            context = AUTHORITY.client()
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=WAIT_SECONDS) as client:
                yield Running(process, client, port, port_of("metrics_listening"), lines)
        finally:
            process.kill()
            reader.join(WAIT_SECONDS)


@pytest.fixture(scope="module")
def server(pair: Pair) -> Iterator[Running]:
    with running(pair) as started:
        yield started


def test_review_over_tls(server: Running, world: Any) -> None:
    answer = server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "4096"})))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    operations = json.loads(base64.b64decode(answer.json()["response"]["patch"]))
    assert operations[0]["value"] == "container=main\nmemory=4096m\ndevices=1\n"


def test_fraction_without_vramd_is_capped_and_warned(server: Running, world: Any) -> None:
    answer = server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-fraction": "0.5"})))
    response = answer.json()["response"]
    assert response["allowed"] is True
    assert "vramd at 127.0.0.1:1" in response["warnings"][0]
    assert "fraction=0.5" in json.loads(base64.b64decode(response["patch"]))[0]["value"]


def test_malformed_body(server: Running) -> None:
    answer = server.client.post("/mutate", content=b"nonsense")
    assert answer.status_code == 400
    assert "AdmissionReview" in answer.text


def test_other_paths_and_methods(server: Running) -> None:
    assert server.client.get("/mutate").status_code == 405
    for path in ("/", "/docs", "/openapi.json", "/metrics"):
        assert server.client.get(path).status_code == 404


def test_health_and_readiness(server: Running) -> None:
    assert server.client.get("/healthz").status_code == 200
    until(lambda: server.client.get("/readyz").status_code == 200)


def test_metrics(server: Running, world: Any) -> None:
    patched = 'isolator_webhook_reviews_total{outcome="patched",reason="share"}'
    denied = 'isolator_webhook_reviews_total{outcome="denied",reason="request_refused"}'
    before = server.metric(patched), server.metric(denied), server.metric("isolator_webhook_review_seconds_count")
    server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "1"})))
    server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "x"})))
    assert server.metric(patched) == before[0] + 1
    assert server.metric(denied) == before[1] + 1
    assert server.metric("isolator_webhook_review_seconds_count") == before[2] + 2
    assert server.metric("isolator_webhook_basis_mib") == 0
    notices = server.metric("isolator_webhook_notices_total")
    server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "1"}, nodeName="n")))
    assert server.metric("isolator_webhook_notices_total") == notices + 1
    assert server.metric("isolator_webhook_basis_age_seconds") > 0
    day = 24 * 3600
    assert day - 3600 < server.metric("isolator_webhook_certificate_expiry_seconds") <= day
    assert httpx.get(f"http://127.0.0.1:{server.metrics_port}/", timeout=WAIT_SECONDS).status_code == 404


@pytest.mark.parametrize(
    ("annotations", "event"),
    [({"gpu-memory": "1"}, "pod_patched"), ({"gpu-memory": "x"}, "pod_denied"), ({"other": "1"}, None)],
)
def test_one_line_a_pod_that_was_touched(
    server: Running, world: Any, annotations: dict[str, str], event: str | None
) -> None:
    uid = f"uid-{event}"
    server.client.post("/mutate", json=world.review_of(world.a_pod(annotations), uid=uid))
    marker = f"after-{event}"
    server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "1"}), uid=marker))
    until(lambda: any(line.get("uid") == marker for line in server.lines))
    told = [line for line in server.lines if line.get("uid") == uid]
    assert [line["event"] for line in told] == ([] if event is None else [event])
    for line in told:
        assert (line["namespace"], line["name"]) == ("default", "a")


def test_no_line_for_a_second_look(server: Running, world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "4096"})
    for uid, manifest in (("again", world.admitted(pod)), ("after-again", pod)):
        server.client.post("/mutate", json=world.review_of(manifest, uid=uid))
    until(lambda: any(line.get("uid") == "after-again" for line in server.lines))
    assert not [line for line in server.lines if line.get("uid") == "again"]


@pytest.mark.parametrize(("path", "memory"), [("/mutate/enforce", "1m"), ("/mutate/exempt", "none")])
def test_treatment_by_path(server: Running, world: Any, path: str, memory: str) -> None:
    answer = server.client.post(path, json=world.review_of(world.a_pod({"gpu-memory": "1"})))
    operations = json.loads(base64.b64decode(answer.json()["response"]["patch"]))
    assert operations[0]["value"] == f"container=main\nmemory={memory}\ndevices=1\n"


@pytest.mark.parametrize(("path", "taken"), [("/guard", True), ("/guard/enforce", False)])
def test_the_guard_by_path(pair: Pair, world: Any, path: str, taken: bool) -> None:
    asked = {"gpu-memory": "1", "kai-resource-isolator.io/inject": "false"}
    pod = world.a_pod(asked, schedulerName="default-scheduler", runtimeClassName="nvidia")
    with running(pair, "--guard", "enforce") as started:
        answer = started.client.post(path, json=world.review_of(pod))
    assert ("patch" in answer.json()["response"]) is taken


def test_body_that_is_too_large(pair: Pair, world: Any) -> None:
    with running(pair, "--body-limit-bytes", "2000") as started:
        announced = started.client.post("/mutate", content=b"x" * 2001)
        chunked = started.client.post("/mutate", content=iter([b"x" * 1000] * 3))
        fitting = started.client.post("/mutate", json=world.review_of(world.a_pod({})))
        assert (announced.status_code, chunked.status_code, fitting.status_code) == (413, 413, 200)
        assert "2000 bytes" in announced.text
        assert started.metric('isolator_webhook_rejected_requests_total{reason="too_large"}') == 2


def connect(started: Running) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", started.port), timeout=WAIT_SECONDS)
    return AUTHORITY.client().wrap_socket(plain, server_hostname="127.0.0.1")


HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


def healthy(connection: ssl.SSLSocket) -> bool:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        answer += connection.recv(1000)
    return answer.startswith(b"HTTP/1.1 200 ")


def test_requests_that_do_not_arrive(pair: Pair) -> None:
    with running(pair, "--receive-timeout-seconds", "2") as started, contextlib.ExitStack() as stack:
        silent, head, body, later = (stack.enter_context(connect(started)) for _ in range(4))
        head.sendall(HEAD[:30])
        body.sendall(HEAD + b"{")
        assert healthy(later)
        for connection in (silent, head, body):
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert healthy(later), "an idle connection owes nothing"
        later.sendall(HEAD)
        with contextlib.suppress(ConnectionResetError):
            assert later.recv(1) == b""
        until(lambda: started.events().count("connection_too_slow") == 4)
        until(lambda: started.metric("isolator_webhook_requests_at_work") == 0)


def test_reviews_at_work_are_bounded(pair: Pair, world: Any) -> None:
    document = world.review_of(world.a_pod({}))
    with running(pair, "--most-reviews", "1") as started:
        with connect(started) as hogging:
            hogging.sendall(HEAD)
            until(lambda: started.metric("isolator_webhook_requests_at_work") == 1)
            answer = started.client.post("/mutate", json=document)
            assert (answer.status_code, answer.text) == (503, "1 reviews are at work already\n")
        assert started.client.post("/mutate", json=document).status_code == 200
        assert started.metric("isolator_webhook_requests_at_work") == 0


def test_bodies_at_work_are_bounded(pair: Pair, world: Any) -> None:
    document = world.review_of(world.a_pod({}))
    with running(pair, "--body-limit-bytes", "2000") as started, contextlib.ExitStack() as stack:
        for number in range(1, 9):
            hogging = stack.enter_context(connect(started))
            hogging.sendall(HEAD.replace(b"100", b"2000") + b" " * 1999)
            until(lambda number=number: started.metric("isolator_webhook_requests_at_work") == number)
        until(lambda: started.client.post("/mutate", json=document).status_code == 503)
        assert started.client.post("/mutate", json=document).text == "bodies of 16000 bytes are at work already\n"
        stack.close()
        until(lambda: started.client.post("/mutate", json=document).status_code == 200)


def test_client_that_goes_away(pair: Pair) -> None:
    with running(pair) as started:
        with connect(started) as connection:
            connection.sendall(HEAD)
            until(lambda: started.metric("isolator_webhook_requests_at_work") == 1)
        until(lambda: started.metric('isolator_webhook_rejected_requests_total{reason="gone"}') == 1)
        assert started.metric("isolator_webhook_requests_at_work") == 0


def test_garbage_is_told_in_one_json_line(pair: Pair) -> None:
    with running(pair) as started:
        with connect(started) as connection:
            connection.sendall(b"\x00\x01garbage\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        until(lambda: "uvicorn" in started.events())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly(pair: Pair, number: signal.Signals) -> None:
    with running(pair) as started:
        assert started.client.get("/healthz").status_code == 200
        started.client.close()
        started.process.send_signal(number)
        assert started.process.wait(WAIT_SECONDS) == 0
    assert "error" not in [line["level"] for line in started.lines]


def test_a_request_that_does_not_arrive_does_not_hold_up_the_end(pair: Pair) -> None:
    with running(pair, "--receive-timeout-seconds", "1") as started, connect(started) as hogging:
        hogging.sendall(HEAD)
        until(lambda: started.metric("isolator_webhook_requests_at_work") == 1)
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(WAIT_SECONDS) == 0


def test_a_signal_before_the_server_runs_is_not_lost(pair: Pair) -> None:
    program = (
        "import gc, os, signal, sys; from isolator_webhook import cli; "
        "gc.collect = lambda: os.kill(os.getpid(), signal.SIGTERM); sys.exit(cli.main())"
    )
    arguments = [sys.executable, "-c", program, *command(pair)[3:]]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0
    assert "listening" not in [json.loads(line)["event"] for line in done.stderr.splitlines()]


def test_drains_before_it_ends(pair: Pair, world: Any) -> None:
    with running(pair, "--drain-seconds", "2") as started:
        until(lambda: started.client.get("/readyz").status_code == 200)
        document = world.review_of(world.a_pod({"gpu-memory": "1"}))
        assert started.client.post("/mutate", json=document).headers.get("connection") != "close"
        started.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in started.events())
        assert started.client.get("/readyz").status_code == 503
        answer = started.client.post("/mutate", json=document)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert started.process.wait(WAIT_SECONDS) == 0


def test_certificate_is_read_again(tmp_path: Path) -> None:
    own = AUTHORITY.issue().write(tmp_path)
    with running(own) as started:
        own.certificate.write_text("nonsense")
        until(lambda: "certificate_unusable" in started.events())
        assert started.client.get("/healthz").status_code == 200
        renewed = Authority()
        renewed.issue().write(tmp_path)
        until(lambda: started.events().count("certificate") == 2)
        with httpx.Client(verify=renewed.client(), timeout=WAIT_SECONDS) as client:
            assert client.get(f"https://127.0.0.1:{started.port}/healthz").status_code == 200
        assert started.client.get("/healthz").status_code == 200, "a connection from before goes on"


def test_files_that_are_gone_are_told_once(tmp_path: Path) -> None:
    own = AUTHORITY.issue().write(tmp_path)
    certificate = FileCertificate(own.certificate, own.key, lambda _expiry: None)
    whole = own.key.read_bytes()
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            own.key.unlink()
            for _ in range(3):
                certificate.refresh()
            own.key.write_bytes(whole)
            certificate.refresh()
        (line,) = logs
        assert line["event"] == "certificate_unusable"
        assert str(own.key) in line["error"]


def test_files_that_are_replaced_between_the_reads_of_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, following = AUTHORITY.two_generations(tmp_path)
    certificate = FileCertificate(now / "tls.crt", now / "tls.key", lambda _expiry: None)
    replace_at_next_read(monkeypatch, now, following)
    with structlog.testing.capture_logs() as logs:
        certificate.refresh()
    assert [line["event"] for line in logs] == ["certificate"]


def test_a_pair_that_fails_in_an_unforeseen_way_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = AUTHORITY.issue().write(tmp_path)
    certificate = FileCertificate(own.certificate, own.key, lambda _expiry: None)
    monkeypatch.setattr("isolator_webhook.certificate.load", Mock(side_effect=RuntimeError("unforeseen")))
    AUTHORITY.issue().write(tmp_path)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            certificate.refresh()
    assert [(line["event"], line["error"]) for line in logs] == [("certificate_unusable", "unforeseen")]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (["--certificate-file", "/no/such/file"], 2, ["--certificate-file", "/no/such/file"]),
        (["--key-file", "/dev/null"], 2, ["--key-file", "/dev/null"]),
        (["--listen-port", "70000"], 2, ["--listen-port", "'70000'"]),
        (["--listen-address", "192.0.2.1"], 1, ["cannot listen on 192.0.2.1"]),
        (["--vramd-deadline-ms", "0"], 2, ["--vramd-deadline-ms", "'0'"]),
        (["--vramd-key-file", "/x"], 2, ["--vramd-certificate-file", "--vramd-key-file"]),
        (["--vramd-ca-file", "/no/such/file"], 2, ["/no/such/file"]),
        (["--metrics-port", "-1"], 2, ["--metrics-port", "'-1'"]),
    ],
)
def test_wrong_settings_end_with_one_line(pair: Pair, change: list[str], status: int, words: list[str]) -> None:
    done = subprocess.run(command(pair, *change), capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_port_that_is_taken(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command(pair, "--listen-port", port), capture_output=True, text=True, timeout=WAIT_SECONDS
        )
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_by_environment(pair: Pair) -> None:
    environment = os.environ | {"ISOLATOR_WEBHOOK_LISTEN_PROT": "1"}
    done = subprocess.run(command(pair), capture_output=True, text=True, env=environment, timeout=WAIT_SECONDS)
    assert done.returncode == 2
    assert "ISOLATOR_WEBHOOK_LISTEN_PROT" in done.stderr
