"""The webhook beside a decode-and-allow handler in the same server, its memory, and vramd in trouble."""

import asyncio
import base64
import contextlib
import json
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from fastapi import FastAPI, Request, Response
from tests.bench.report import Row

from isolator_core import names
from isolator_testing.certificates import Authority
from isolator_webhook import certificate, server
from isolator_webhook.app import State

ROUNDS = 15
ROUND_SECONDS = 1.0
CONNECTIONS = 8
PACED_RATE = 100
PACED_SECONDS = 10.0
FAULT_RATE = 500
FAULT_SECONDS = 4.0
DEADLINE_MS = 200
START_SECONDS = 60.0
REVIEW_BYTES = 8 << 10

NODES = """
apiVersion: v1
kind: NodeList
items:
  - metadata: {name: n1, labels: {nvidia.com/gpu.memory: "15360", nvidia.com/gpu.count: "4", pool: t4}}
"""


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificates(directory)
        nodes = directory / "nodes.yaml"
        nodes.write_text(NODES)
        with started(
            ["-m", "isolator_vramd", "serve", "--nodes-file", str(nodes), *ports(directory, "vramd")]
        ) as vramd:
            address = f"127.0.0.1:{vramd.port}"
            with webhook(directory, address) as real, baseline(directory) as plain:
                yield from rate_rows(directory, real.port, plain.port)
                yield paced_row(directory, real.port, plain.port)
                yield from memory_rows(real)
            with webhook(directory, address) as real:
                yield from fault_rows(directory, real.port, vramd.process)


def certificates(directory: Path) -> None:
    """An authority, `ca.crt`, and what it issued for loopback, `tls.crt` and `tls.key`."""
    authority = Authority()
    authority.write(directory)
    authority.issue().write(directory)


class Started:
    """A process of ours and the port that it listens on."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def resident_mb(self) -> float:
        return resident_mb(self.process.pid)


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def started(arguments: list[str]) -> Iterator[Started]:
    """A Python process that says in a JSON line that it is listening."""
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        subprocess.Popen([sys.executable, *arguments], stderr=log) as process,
    ):
        try:
            yield Started(process, port_in(Path(log.name), process))
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def port_in(log: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that a process says it is listening on."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["event"] == "listening":
                return int(json.loads(line)["port"])
        time.sleep(0.05)
    raise RuntimeError(log.read_text())


def ports(_directory: Path, _name: str) -> list[str]:
    """Free ports on loopback."""
    return ["--listen-address", "127.0.0.1", "--listen-port", "0", "--metrics-port", "0"]


@contextmanager
def webhook(directory: Path, vramd: str) -> Iterator[Started]:
    """The webhook, ready."""
    arguments = [
        "-m", "isolator_webhook", "serve", *ports(directory, "webhook"), "--vramd-address", vramd,
        "--vramd-deadline-ms", str(DEADLINE_MS), "--certificate-file", str(directory / "tls.crt"),
        "--key-file", str(directory / "tls.key"), "--drain-seconds", "0",
    ]  # fmt: skip
    with started(arguments) as process:
        asyncio.run(until_ready(directory, process.port))
        yield process


@contextmanager
def baseline(directory: Path) -> Iterator[Started]:
    """The same server with a handler that decodes the review and the pod, and allows."""
    code = "import sys; from tests.bench.webhook import serve_baseline; serve_baseline(sys.argv[1])"
    with started(["-c", code, str(directory)]) as process:
        yield process


def serve_baseline(directory: str) -> None:
    """Run the baseline."""
    import msgspec

    from isolator_core import logs
    from isolator_webhook import review
    from isolator_webhook.pod import Pod

    logs.configure("baseline", "info")
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pods = msgspec.json.Decoder(Pod)

    async def mutate(request: Request) -> Response:
        asked = review.decode(await request.body()).request
        pods.decode(asked.object)
        answer = review.ReviewAnswer(review.Response(asked.uid, allowed=True))
        return Response(msgspec.json.encode(answer), media_type="application/json")

    api.post("/mutate")(mutate)
    context = certificate.make_context()
    certificate.load(context, (Path(directory) / "tls.crt").read_bytes(), (Path(directory) / "tls.key").read_bytes())
    server.serve(api, State(), server.listen("127.0.0.1", 0), context, server.Bounds())


def review_body(annotations: dict[str, str], **spec: Any) -> bytes:
    """A review of a pod that shares, filled up to 8 KB with what API servers put into pods."""
    filler = [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(60)]
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "training-0",
            "namespace": "team",
            "labels": {"kai.scheduler/queue": "team"},
            "annotations": annotations,
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "schedulerName": "kai-scheduler",
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "containers": [
                {
                    "name": "main",
                    "image": "pytorch",
                    "env": filler,
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                }
            ],
        }
        | spec,
    }
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "8f1f1c4e-6b2b-4a5e-9a38-0f0f0f0f0f0f",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "team",
            "name": "training-0",
            "object": pod,
        },
    }
    pod["metadata"]["annotations"]["padding"] = "x" * max(0, REVIEW_BYTES - len(json.dumps(review)) - 15)
    return json.dumps(review).encode()


FREE = review_body({"gpu-fraction": "0.25"})
PINNED = review_body({"gpu-fraction": "0.25"}, nodeSelector={"pool": "t4"})


class Client:
    """One connection that is kept, and one request on it at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        self._writer.write(head + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        fields = answer.lower()
        at = fields.index(b"content-length: ") + 16
        content = await self._reader.readexactly(int(fields[at : fields.index(b"\r\n", at)]))
        return int(answer[9:12]), content

    async def review(self, body: bytes) -> float:
        """Seconds that one review took. Raises RuntimeError where it was not allowed."""
        head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        start = time.perf_counter()
        status, content = await self.call(head, body)
        took = time.perf_counter() - start
        if status != 200 or b'"allowed":true' not in content:
            raise RuntimeError(f"{status} {content!r}")
        return took

    async def limit(self, body: bytes) -> str:
        """CUDA_DEVICE_MEMORY_LIMIT in the patch that a review gets, empty where there is none."""
        head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        _, content = await self.call(head, body)
        for operation in json.loads(base64.b64decode(json.loads(content)["response"]["patch"])):
            value = operation.get("value")
            if isinstance(value, dict) and value.get("name") == names.LIMIT_KEY:
                return str(value["value"])
        return ""


@contextlib.asynccontextmanager
async def connected(directory: Path, port: int) -> AsyncIterator[Client]:
    """A connection that checks the certificate."""
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until_ready(directory: Path, port: int) -> None:
    """Wait for /readyz."""
    async with connected(directory, port) as client, asyncio.timeout(START_SECONDS):
        while (await client.call(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", b""))[0] != 200:
            await asyncio.sleep(0.05)


async def limit_of(directory: Path, port: int, body: bytes) -> str:
    """The same, on a connection of its own."""
    async with connected(directory, port) as client:
        return await client.limit(body)


async def flat_out(directory: Path, port: int, body: bytes, seconds: float) -> list[float]:
    """Latencies of as many reviews as eight connections get through in a time."""
    took: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(directory, port)) for _ in range(CONNECTIONS)]
        end = time.perf_counter() + seconds

        async def one(client: Client) -> None:
            while time.perf_counter() < end:
                took.append(await client.review(body))

        await asyncio.gather(*(one(client) for client in clients))
    return took


async def paced(
    directory: Path, port: int, body: bytes, rate: int, seconds: float, during: Callable[[], None] = lambda: None
) -> list[float]:
    """Latencies of reviews that arrive at a rate; each is counted from when it should have been sent.

    Connections are as many as it takes. `during` is called once a tenth of the time is over.
    """
    took: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        idle: list[Client] = []
        start = time.perf_counter() + 0.1

        async def one(due: float) -> None:
            client = idle.pop() if idle else await stack.enter_async_context(connected(directory, port))
            await client.review(body)
            took.append(time.perf_counter() - due)
            idle.append(client)

        for _ in range(32):
            idle.append(await stack.enter_async_context(connected(directory, port)))
        tasks = []
        for number in range(int(rate * seconds)):
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if number == int(rate * seconds / 10):
                during()
            tasks.append(asyncio.create_task(one(due)))
        await asyncio.gather(*tasks)
    return took


def percentile(values: list[float], part: float) -> float:
    """A percentile, of at least two values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def rate_rows(directory: Path, real: int, plain: int) -> Iterator[Row]:
    """Rate and p99 of the webhook beside the baseline's, in alternating rounds."""
    measured: dict[int, list[list[float]]] = {real: [], plain: []}
    for _ in range(ROUNDS):
        for port in (plain, real):
            measured[port].append(uvloop.run(flat_out(directory, port, FREE, ROUND_SECONDS)))
    rate = {port: statistics.median(len(took) / ROUND_SECONDS for took in rounds) for port, rounds in measured.items()}
    tail = {port: statistics.median(percentile(took, 0.99) for took in rounds) for port, rounds in measured.items()}
    share, worse = rate[real] / rate[plain], tail[real] / tail[plain]
    yield Row(
        "admission: reviews a second, 8 connections",
        f"{rate[plain]:.0f}/s decode and allow",
        f"{rate[real]:.0f}/s = {share:.0%}",
        "≥ 85 %",
        share >= 0.85,
    )
    yield Row(
        "admission: p99, 8 connections",
        f"{tail[plain] * 1e3:.2f} ms decode and allow",
        f"{tail[real] * 1e3:.2f} ms = {worse:.2f} ×",
        "≤ 1.3 ×",
        worse <= 1.3,
    )


def paced_row(directory: Path, real: int, plain: int) -> Row:
    """p99 at a hundred reviews a second; the baseline's says how much of it is the machine's."""
    tail = {
        port: percentile(uvloop.run(paced(directory, port, FREE, PACED_RATE, PACED_SECONDS)), 0.99)
        for port in (plain, real)
    }
    return Row(
        "admission: p99 at 100 a second",
        f"{tail[plain] * 1e3:.2f} ms decode and allow",
        f"{tail[real] * 1e3:.2f} ms",
        "≤ 5 ms",
        tail[real] <= 0.005,
    )


IMPORTS = """
import asyncio, sys
import cryptography.x509, fastapi, grpc, httptools, msgspec, prometheus_client, pydantic_settings, structlog, uvicorn
import uvloop, isolator_core.proto.vram_pb2_grpc, isolator_core.http_server, uvicorn.protocols.http.httptools_impl
import ssl, yaml, jsonpatch, concurrent.futures, isolator_core.requests
print("ready", flush=True)
sys.stdin.read()
"""


def memory_rows(real: Started) -> Iterator[Row]:
    """Resident memory after the load of the rounds."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        imports = resident_mb(process.pid)
        process.kill()
    used = real.resident_mb()
    yield Row("webhook: resident memory", "–", f"{used:.0f} MB", "≤ 110 MB", used <= 110)
    yield Row(
        "webhook: resident memory above its imports",
        f"{imports:.0f} MB interpreter with the same imports",
        f"{used - imports:.0f} MB more",
        "≤ 15 MB",
        used - imports <= 15,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """It is gone at once."""
    process.kill()


def hang(process: subprocess.Popen[bytes]) -> None:
    """It is there and does nothing, until it is continued."""
    process.send_signal(signal.SIGSTOP)


def return_later(process: subprocess.Popen[bytes]) -> None:
    """It hangs, and works again a second later."""
    hang(process)
    threading.Timer(1.0, process.send_signal, (signal.SIGCONT,)).start()


def stutter(process: subprocess.Popen[bytes]) -> None:
    """It works for a tenth of the time, until shortly before the load ends."""
    end = time.monotonic() + 0.8 * FAULT_SECONDS

    def turns() -> None:
        while time.monotonic() < end:
            for number, pause in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
                process.send_signal(number)
                time.sleep(pause)

    threading.Thread(target=turns, daemon=True).start()


FAULTS: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
    "slow": stutter,
    "hung": hang,
    "hung and back": return_later,
    "killed": kill,
}


def fault_rows(directory: Path, port: int, vramd: subprocess.Popen[bytes]) -> Iterator[Row]:
    """The slowest of reviews of pods that constrain their node, while vramd is in trouble."""
    for what, fault in FAULTS.items():
        took = uvloop.run(
            paced(directory, port, PINNED, FAULT_RATE, FAULT_SECONDS, lambda fault=fault: fault(vramd))  # type: ignore[misc]
        )
        slowest = max(took)
        yield Row(
            f"admission: slowest of {len(took)} at {FAULT_RATE} a second, vramd {what}",
            f"deadline {DEADLINE_MS} ms",
            f"{slowest * 1e3:.0f} ms, none failed",
            "≤ deadline + 50 ms",
            slowest <= DEADLINE_MS / 1e3 + 0.05,
        )
        vramd.send_signal(signal.SIGCONT)
