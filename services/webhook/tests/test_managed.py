"""TLS that the service manages: two replicas, an API server played here, rotations under load."""

import base64
import contextlib
import datetime
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from isolator_testing.processes import running
from isolator_webhook import trust
from isolator_webhook.managed import keeper, rotation
from isolator_webhook.managed.cluster import Api, ApiFailed, Objects
from isolator_webhook.managed.rotation import Policy

WAIT_SECONDS = 120
NAMED = ["--secret-name", "a", "--lease-name", "a", "--service-name", "a", "--webhook-configurations", "a"]
HOST = "isolator-webhook.gpu.svc"
KEYS = "/api/v1/namespaces/gpu/secrets/certificate"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/certificate"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/isolator-mutating"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpu/endpointslices"


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class ApiServer:
    """Objects by path, with resource versions and the two kinds of patches; every bundle and when it came is kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 1
        self.away = False
        self.refused = self.answered = 0
        self.objects: dict[str, Any] = {
            KEYS: {"metadata": {"name": "certificate"}},
            LEASE: {"metadata": {"name": "certificate"}, "spec": {}},
            CONFIGURATION: {
                "metadata": {"name": "isolator-mutating"},
                "webhooks": [{"name": "a", "clientConfig": {}}, {"name": "b", "clientConfig": {}}],
            },
            SLICES: {"items": []},
        }
        for item in self.objects.values():
            item.setdefault("metadata", {})["resourceVersion"] = "1"
        self.bundles: list[tuple[float, bytes]] = []

    def change(self, path: str, content: Any) -> tuple[int, Any]:
        with self.lock:
            now = self.objects[path]
            after = jsonpatch.apply_patch(now, content) if isinstance(content, list) else merged(now, content)
            if after["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]:
                return 409, {"message": "the object has been modified"}
            self.version += 1
            after["metadata"]["resourceVersion"] = str(self.version)
            self.objects[path] = after
            if path == CONFIGURATION:
                bundle = base64.b64decode(after["webhooks"][0]["clientConfig"]["caBundle"])
                self.bundles.append((time.monotonic(), bundle))
            return 200, after

    def bundle(self, delay: float) -> bytes:
        """The bundle as an API server knows it that hears of changes so many seconds late."""
        then = time.monotonic() - delay
        return [bundle for when, bundle in list(self.bundles) if when <= then or bundle is self.bundles[0][1]][-1]

    def endpoints(self, *pods: str) -> None:
        endpoints = [{"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": pod}} for pod in pods]
        self.objects[SLICES] = {"metadata": {"resourceVersion": "1"}, "items": [{"endpoints": endpoints}]}


@pytest.fixture
def api() -> Iterator[tuple[ApiServer, str]]:
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if state.away:
                state.refused += 1
            else:
                state.answered += 1
            if state.away or path not in state.objects:
                self.answer(503 if state.away else 404, {"message": "no"})
            else:
                assert self.headers["Authorization"] == "Bearer secret"
                self.answer(200, state.objects[path])

        def do_PATCH(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(*((503, {"message": "no"}) if state.away else state.change(self.path, content)))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield state, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Replica:
    def __init__(self, pod: str, url: str, token: Path, settle: float) -> None:
        self.pod = pod
        self.lines: list[Any] = []
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "isolator_webhook", "serve", "--tls", "managed", "--namespace", "gpu",
                "--secret-name", "certificate", "--lease-name", "certificate", "--service-name", "isolator-webhook",
                "--webhook-configurations", "isolator-mutating", "--pod-name", pod, "--api-url", url,
                "--api-token-file", str(token), "--settle-seconds", str(settle), "--certificate-poll-seconds", "0.1",
                "--listen-address", "127.0.0.1", "--listen-port", "0", "--metrics-port", "0", "--drain-seconds", "0",
                "--vramd-address", "127.0.0.1:1",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        until(lambda: "listening" in self.events() or self.process.poll() is not None)
        self.port = int(next(line["port"] for line in self.lines if line["event"] == "listening"))

    def read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(json.loads(line) for line in self.process.stderr)

    def end(self) -> None:
        self.process.kill()
        self.reader.join(WAIT_SECONDS)
        with self.process:
            pass

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    def steps(self) -> list[str]:
        return [line["step"] for line in self.lines if line["event"] == "rotation"]

    def serials(self) -> list[str]:
        return [line["serial"] for line in self.lines if line["event"] == "certificate"]

    def review(self, bundle: bytes, body: bytes) -> bytes:
        """One review over a connection of its own, checked as the API server checks it."""
        return self.request("POST /mutate", ssl.create_default_context(cadata=bundle.decode()), body)

    def ready(self) -> bool:
        """What the kubelet's probe finds, which checks no certificate."""
        return self.request("GET /readyz", ssl._create_unverified_context()).startswith(b"HTTP/1.1 200 ")

    def request(self, what: str, context: ssl.SSLContext, body: bytes = b"") -> bytes:
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as connection,
        ):
            head = f"{what} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer


@contextlib.contextmanager
def replicas(api: tuple[ApiServer, str], directory: Path, settle: float, *pods: str) -> Iterator[list[Replica]]:
    state, url = api
    token = directory / "token"
    token.write_text("secret\n")
    state.endpoints(*pods)
    started = []
    try:
        for pod in pods:
            started.append(Replica(pod, url, token, settle))
        yield started
    finally:
        for replica in started:
            replica.end()


def bundle_is_in_place(state: ApiServer) -> bool:
    webhooks = state.objects[CONFIGURATION]["webhooks"]
    return all("caBundle" in webhook["clientConfig"] for webhook in webhooks)


def wish(state: ApiServer, what: str) -> None:
    state.change(KEYS, {"metadata": {"annotations": {keeper.ROTATE_ANNOTATION: what}}})


@pytest.mark.slow
def test_no_review_fails_through_fifty_rotations(api: tuple[ApiServer, str], tmp_path: Path, world: Any) -> None:
    state, _ = api
    body = json.dumps(world.review_of(world.a_pod({"gpu-memory": "1"}))).encode()
    failures: list[str] = []
    answered = 0
    late: list[float] = []
    stop = threading.Event()
    # A client may have to wait for the processor between its bundle and the handshake.
    settle = 2.0
    with replicas(api, tmp_path, settle, "one", "two") as started:
        until(lambda: bundle_is_in_place(state))

        def load(replica: Replica, delay: float) -> None:
            nonlocal answered
            while not stop.is_set():
                known = time.monotonic() - delay
                try:
                    answer = replica.review(state.bundle(delay), body)
                    failure = "" if b'"allowed":true' in answer else repr(answer[:200])
                except OSError as error:
                    failure = repr(error)
                if failure and (age := time.monotonic() - known) > settle:
                    # A client that sees a bundle later than that is promised nothing.
                    late.append(age)
                elif failure:
                    failures.append(failure)
                else:
                    answered += 1
                time.sleep(0.01)

        threads = [
            threading.Thread(target=load, args=(replica, delay), daemon=True)
            for replica in started
            for delay in (0.0, settle / 4)
        ]
        for thread in threads:
            thread.start()

        def leaves() -> int:
            return min(len(replica.serials()) for replica in started)

        def in_rest() -> bool:
            return not {"next-ca.crt", "old-ca.crt"} & set(state.objects[KEYS]["data"])

        try:
            for number in range(50):
                before = leaves()
                wish(state, "ca" if number % 5 == 0 else "leaf")
                until(lambda before=before: leaves() > before and in_rest())  # type: ignore[misc]
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_SECONDS)
        steps = [step for replica in started for step in replica.steps()]
    assert failures == []
    assert answered > 200
    assert len(late) < answered / 100
    assert steps.count("authority changed") == steps.count("old authority removed") == 10
    assert steps.count("leaf renewed") == 40
    assert len({bundle for _, bundle in state.bundles}) >= 21


def test_ready_once_the_bundle_is_in_place_and_through_a_rotation(api: tuple[ApiServer, str], tmp_path: Path) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one") as (replica,):
        until(lambda: replica.ready())
        assert state.bundles[0][0] + trust.NOTICE_SECONDS <= time.monotonic()
        assert replica.events().index("trusted") < replica.events().index("ready")
        wish(state, "ca")
        while "old authority removed" not in replica.steps():
            assert replica.ready()


def test_a_new_replica_waits_for_the_bundle_that_the_writer_has_to_put_back(
    api: tuple[ApiServer, str], tmp_path: Path
) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one") as (writer,):
        until(lambda: bundle_is_in_place(state))
        writer.process.send_signal(signal.SIGSTOP)
        try:
            with state.lock:
                # Renewed for as long as the writer is stopped.
                state.objects[LEASE]["spec"]["leaseDurationSeconds"] = 10 * WAIT_SECONDS
                for webhook in state.objects[CONFIGURATION]["webhooks"]:
                    del webhook["clientConfig"]["caBundle"]
            with replicas(api, tmp_path, 0.2, "two") as (other,):
                until(lambda: "not_trusted_yet" in other.events())
                time.sleep(2 * trust.NOTICE_SECONDS)
                assert not other.ready()
                writer.process.send_signal(signal.SIGCONT)
                until(lambda: other.ready())
        finally:
            writer.process.send_signal(signal.SIGCONT)
    assert bundle_is_in_place(state)


def test_a_replica_that_does_not_follow_keeps_the_old_authority_in_the_bundle(
    api: tuple[ApiServer, str], tmp_path: Path
) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one") as (replica,):
        state.endpoints("one", "deaf")
        until(lambda: bundle_is_in_place(state))
        wish(state, "ca")
        until(lambda: "authority changed" in replica.steps())
        time.sleep(1)
        assert "old authority removed" not in replica.steps()
        state.endpoints("one")
        until(lambda: "old authority removed" in replica.steps())


def test_another_replica_takes_over(api: tuple[ApiServer, str], tmp_path: Path) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one", "two") as started:
        holder = state.objects[LEASE]["spec"]["holderIdentity"]
        (writer,) = [replica for replica in started if replica.pod == holder]
        (other,) = [replica for replica in started if replica.pod != holder]
        writer.process.kill()
        state.endpoints(other.pod)
        state.change(LEASE, {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})
        until(lambda: state.objects[LEASE]["spec"]["holderIdentity"] == other.pod)
        wish(state, "leaf")
        until(lambda: "leaf renewed" in other.steps())
        assert keeper.ROTATE_ANNOTATION not in state.objects[KEYS]["metadata"].get("annotations", {})


@pytest.mark.parametrize("paused_in", ["read_configurations", "read_secret", "put_bundle"])
def test_a_replica_that_was_paused_puts_no_old_bundle_back(
    api: tuple[ApiServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused_in: str
) -> None:
    """Paused before or after a call, while another becomes the writer, renews the authority and writes its bundle."""
    state, url = api
    token = tmp_path / "token"
    token.write_text("secret\n")
    objects = Objects(Api(url, token, None), "gpu", "certificate", "certificate", "a", ["isolator-mutating"])
    policy = Policy(hosts=(HOST,), settle=datetime.timedelta(0))
    paused, other = (keeper.Keeper(objects, policy, pod, 1, lambda _expiry: None) for pod in ("one", "two"))
    state.endpoints("one")
    for _ in range(3):
        paused.turn()
    before = state.objects[CONFIGURATION]["webhooks"]
    call = getattr(Objects, paused_in)

    def take_over() -> None:
        monkeypatch.setattr(Objects, paused_in, call)
        state.change(LEASE, {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}})
        wish(state, "ca")
        for _ in range(2):
            other.turn()
        assert state.objects[CONFIGURATION]["webhooks"] != before

    def calling(*arguments: Any) -> Any:
        if paused_in == "put_bundle":
            take_over()
            return call(*arguments)
        result = call(*arguments)
        take_over()
        return result

    # Something that it has to put right itself, by what it knows.
    with state.lock:
        changed = json.loads(json.dumps(state.objects[CONFIGURATION]))
        del changed["webhooks"][1]["clientConfig"]["caBundle"]
        state.objects[CONFIGURATION] = changed
    monkeypatch.setattr(Objects, paused_in, calling)
    with contextlib.suppress(ApiFailed):
        paused.turn()
    assert getattr(Objects, paused_in) is call, "it was paused"
    secret = rotation.from_secret(state.objects[KEYS]["data"])
    bundles = {webhook["clientConfig"]["caBundle"] for webhook in state.objects[CONFIGURATION]["webhooks"]}
    assert bundles == {base64.b64encode(secret.bundle()).decode()}


def test_serving_goes_on_while_the_api_server_is_away(api: tuple[ApiServer, str], tmp_path: Path, world: Any) -> None:
    state, _ = api
    body = json.dumps(world.review_of(world.a_pod({"gpu-memory": "1"}))).encode()
    with replicas(api, tmp_path, 0.2, "one") as (replica,):
        until(lambda: bundle_is_in_place(state))
        state.away = True
        until(lambda: "certificate_api_failed" in replica.events())
        assert replica.review(state.bundle(0), body).startswith(b"HTTP/1.1 200 ")
        state.away = False
        wish(state, "leaf")
        until(lambda: "leaf renewed" in replica.steps())


def test_it_can_be_ended_while_it_waits_for_a_certificate(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    command = [
        sys.executable, "-m", "isolator_webhook", "serve", "--tls", "managed", *NAMED, "--namespace", "gpu",
        "--api-url", "http://127.0.0.1:1", "--api-token-file", str(token), "--listen-address", "127.0.0.1",
        "--listen-port", "0", "--metrics-port", "0",
    ]  # fmt: skip
    with running(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "no_certificate_yet":
                break
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


def test_a_bundle_that_someone_removed_is_put_back(api: tuple[ApiServer, str], tmp_path: Path) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one"):
        until(lambda: bundle_is_in_place(state))
        with state.lock:
            state.objects[CONFIGURATION]["webhooks"][1]["clientConfig"].pop("caBundle")
        until(lambda: bundle_is_in_place(state))


def test_a_damaged_key_of_the_authority_is_told_once_and_mended(api: tuple[ApiServer, str], tmp_path: Path) -> None:
    state, _ = api
    with replicas(api, tmp_path, 2.0, "one") as (replica,):
        until(lambda: bundle_is_in_place(state))
        state.change(KEYS, {"data": {"ca.key": base64.b64encode(b"nonsense").decode()}})
        until(lambda: "old authority removed" in replica.steps())
    assert replica.events().count("authority_unusable") == 1
    assert "certificate_unusable" not in replica.events()


def test_turns_that_fail_alike_are_told_once(api: tuple[ApiServer, str], tmp_path: Path) -> None:
    state, _ = api
    with replicas(api, tmp_path, 0.2, "one") as (replica,):
        until(lambda: bundle_is_in_place(state))
        for times in (1, 2):
            refused = state.refused
            state.away = True
            until(lambda refused=refused: state.refused > refused + 10)  # type: ignore[misc]
            state.away = False
            answered = state.answered
            until(lambda answered=answered: state.answered > answered + 10)  # type: ignore[misc]
            # Another one where it went away within a turn.
            assert times <= replica.events().count("certificate_api_failed") <= 2 * times


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--secret-name", "managed"]),
        (NAMED, ["--namespace"]),
        ([*NAMED, "--namespace", "a"], ["--api-url", "KUBERNETES_SERVICE_HOST"]),
    ],
)
def test_settings_of_the_management(arguments: list[str], words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isolator_webhook", "serve", "--tls", "managed", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
