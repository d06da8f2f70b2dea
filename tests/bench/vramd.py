"""vramd on a cluster of 5,000 nodes: the answer for a constrained pod, first sync, memory, how fast a change shows.

The nodes come from an HTTP server in a process of its own that speaks the API's list and watch; the baseline of an
answer is an empty call to an empty server of the same kind, asked in turn with vramd.
"""

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import urllib3
from tests.bench import webhook
from tests.bench.report import Row

from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_testing.node_api import NodeApi, make_node
from isolator_testing.processes import running
from isolator_vramd.server import OPTIONS

NODES = 5_000
NODE_BYTES = 13_000
SYNCS = 5
ROUNDS = 15
CALLS_A_ROUND = 400
CHANGE_ROUNDS = 7
CHANGES_A_ROUND = 15
POOLS = 20
MEMORIES = (15360, 24576, 40960, 81559)
WAIT_SECONDS = 120.0
NULL_METHOD = "/bench.Null/Call"


def node(number: int, mib: int) -> dict[str, Any]:
    """One of the cluster's nodes; every one differs from all others in some labels, as real ones do."""
    labels = {
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.product": f"GPU-{mib}",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "pool": f"pool-{number % POOLS}",
        "rack": f"rack-{number // 40}",
        "generation": str(number % 9),
        "serial": str(number),
    }
    return make_node(f"node-{number:05}", labels, size_bytes=NODE_BYTES)


def memory_of(number: int) -> int:
    return MEMORIES[number % POOLS % len(MEMORIES)]


def serve_nodes(commands: Connection) -> None:
    """A process of its own: the API, and changes on demand."""
    with NodeApi().running() as api:
        for number in range(NODES):
            api.put(node(number, memory_of(number)))
        commands.send(api.port)
        while (command := commands.recv()) is not None:
            for number, mib in command:
                api.put(node(number, mib))
            commands.send(time.monotonic())


def serve_null(commands: Connection) -> None:
    """A process of its own: a gRPC server like vramd's whose one method does nothing."""

    async def nothing(_request: bytes, _context: Any) -> bytes:
        return b""

    async def run() -> None:
        server = grpc.aio.server(options=OPTIONS)
        handler: Any = grpc.unary_unary_rpc_method_handler(nothing)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Null", {"Call": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        commands.send(port)
        await asyncio.to_thread(commands.recv)
        await server.stop(0)

    asyncio.run(run())


@contextmanager
def process(target: Callable[[Connection], None]) -> Iterator[tuple[Connection, int]]:
    """A child process that sends its port when it is ready, and ends when it is sent None."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=target, args=(theirs,), daemon=True)
    child.start()
    try:
        assert ours.poll(WAIT_SECONDS), f"{target.__name__} did not start"
        yield ours, ours.recv()
    finally:
        ours.send(None)
        child.join(WAIT_SECONDS)


def seconds_to_read(port: int) -> float:
    """Fetch all pages and do nothing with them: the baseline of a first sync."""
    with urllib3.PoolManager() as pool:
        start, token = time.perf_counter(), ""
        while True:
            fields = {"limit": "500"} | ({"continue": token} if token else {})
            content = pool.request("GET", f"http://127.0.0.1:{port}/api/v1/nodes", fields=fields).data
            # Not decoded: the token is within the first bytes.
            _, found, rest = content[:400].partition(b'"continue":"')
            token = rest.partition(b'"')[0].decode() if found else ""
            if not token:
                return time.perf_counter() - start


@dataclass(frozen=True)
class Running:
    """`sync_seconds` are from when it listens, and begins to read, until a subscriber has the basis."""

    pid: int
    port: int
    sync_seconds: float
    sync_cpu_seconds: float


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def vramd(kubeconfig: Path) -> Iterator[Running]:
    """A real `isolator-vramd serve`, once it answers."""
    command = [sys.executable, "-m", "isolator_vramd", "serve", "--kubeconfig", str(kubeconfig)]
    arguments = ["--listen-address", "127.0.0.1", "--listen-port", "0", "--metrics-port", "0"]
    with running([*command, *arguments], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line: dict[str, Any] = {}
        while line.get("event") != "listening":
            line = json.loads(process.stderr.readline())
        start, cpu = time.perf_counter(), cpu_seconds(process.pid)
        with grpc.insecure_channel(f"127.0.0.1:{line['port']}") as channel:
            stub = vram_pb2_grpc.VramStub(channel)  # type: ignore[no-untyped-call]
            answers = stub.WatchBasis(vram_pb2.WatchBasisRequest())
            next(answer for answer in answers if answer.HasField("basis"))
        cpu = cpu_seconds(process.pid) - cpu
        yield Running(process.pid, line["port"], time.perf_counter() - start, cpu)
        process.terminate()
        process.wait(WAIT_SECONDS)


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process in 10^6 bytes, now (`VmRSS`) and at its most (`VmHWM`)."""
    fields = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 / 1e6 for words in fields if words[0] in ("VmRSS:", "VmHWM:")}


def constraints(chosen: random.Random) -> vram_pb2.GetBasisRequest:
    """A pod that constrains its node, each one otherwise: selectors, affinity with several terms, numbers."""
    request = vram_pb2.GetBasisRequest(node_selector={"topology.kubernetes.io/zone": f"zone-{chosen.randrange(3)}"})
    terms = request.required_node_affinity.terms
    first = terms.add()
    first.match_expressions.add(key="pool", operator="In", values=[f"pool-{chosen.randrange(POOLS)}" for _ in range(3)])
    first.match_expressions.add(key="generation", operator="Gt", values=[str(chosen.randrange(8))])
    second = terms.add()
    second.match_expressions.add(key="rack", operator="NotIn", values=[f"rack-{chosen.randrange(NODES // 40)}"])
    second.match_expressions.add(key="nvidia.com/gpu.present", operator="Exists")
    second.match_fields.add(key="metadata.name", operator="NotIn", values=[f"node-{chosen.randrange(NODES):05}"])
    return request


@dataclass(frozen=True)
class Latencies:
    """Of one round, in seconds."""

    asked: list[float]
    empty: list[float]

    def more(self) -> float:
        """How much longer the slowest hundredth of answers takes than that of empty calls."""
        return p(0.99, self.asked) - p(0.99, self.empty)


def latencies(port: int, null_port: int) -> list[Latencies]:
    """Calls to vramd and to the empty server, in turn; the first round warms both up and does not count."""
    chosen = random.Random(1)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, grpc.insecure_channel(f"127.0.0.1:{null_port}") as null:
        stub = vram_pb2_grpc.VramStub(channel)  # type: ignore[no-untyped-call]
        nothing: Any = null.unary_unary(NULL_METHOD)
        rounds = []
        for _ in range(1 + ROUNDS):
            asked, empty = [], []
            for _ in range(CALLS_A_ROUND):
                request = constraints(chosen)
                start = time.perf_counter()
                answer = stub.GetBasis(request)
                between = time.perf_counter()
                nothing(b"")
                end = time.perf_counter()
                assert answer.HasField("basis"), answer
                asked.append(between - start)
                empty.append(end - between)
            rounds.append(Latencies(asked, empty))
        return rounds[1:]


def change_latencies(port: int, api: Connection) -> list[list[float]]:
    """Seconds from a node's change in the API until a subscriber has the new basis, in rounds."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = vram_pb2_grpc.VramStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.WatchBasis(vram_pb2.WatchBasisRequest())
        next(stream)
        found: list[list[float]] = []
        for number in range(CHANGE_ROUNDS * CHANGES_A_ROUND):
            if number % CHANGES_A_ROUND == 0:
                found.append([])
            start = time.monotonic()
            api.send([(0, 1000 + number)])
            answer = next(stream)
            found[-1].append(time.monotonic() - start)
            assert answer.basis.basis_mib == 1000 + number
            api.recv()
            time.sleep(out_of_step())
        return found


def out_of_step() -> float:
    """A pause that is not in step with the time within which changes are put together, in seconds."""
    return random.uniform(0.02, 0.06)


async def webhook_latencies(directory: Path, port: int, api: Connection) -> list[list[float]]:
    """Seconds from a node's change in the API until the webhook's answer to a pod follows from it, in rounds."""
    found: list[list[float]] = []
    async with webhook.connected(directory, port) as client:
        for number in range(CHANGE_ROUNDS * CHANGES_A_ROUND):
            if number % CHANGES_A_ROUND == 0:
                found.append([])
            quarter = 200 + number
            start = time.monotonic()
            api.send([(0, 4 * quarter)])
            while await client.limit(webhook.FREE) != f"{quarter}m":
                assert time.monotonic() - start < WAIT_SECONDS
            found[-1].append(time.monotonic() - start)
            await asyncio.to_thread(api.recv)
            await asyncio.sleep(out_of_step())
    return found


def change_row(what: str, rounds: list[list[float]]) -> Row:
    """How fast changes show; the budget is for the slowest of a round."""
    slowest = statistics.median(map(max, rounds))
    return Row(
        what,
        "–",
        f"p50 {p(0.5, [seconds for each in rounds for seconds in each]) * 1e3:.0f} ms, "
        f"slowest of {CHANGES_A_ROUND} {slowest * 1e3:.0f} ms, median of {CHANGE_ROUNDS} rounds",
        "≤ 100 ms",
        slowest <= 0.1,
    )


def burst_seconds(port: int, api: Connection) -> float:
    """Seconds from the last of 5,000 changes at once until a subscriber has the basis that follows from all of them."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = vram_pb2_grpc.VramStub(channel)  # type: ignore[no-untyped-call]
        stream = stub.WatchBasis(vram_pb2.WatchBasisRequest())
        next(stream)
        api.send([(number, 50_000) for number in range(NODES)])
        for answer in stream:
            if answer.basis.basis_mib == 50_000:
                seen = time.monotonic()
                return seen - float(api.recv())
        raise AssertionError("the stream ended")


def p(share: float, values: list[float]) -> float:
    """The value that this share of all stays below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def rows() -> Iterator[Row]:
    """Measure vramd on a cluster of 5,000 nodes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        process(serve_null) as (_null, null_port),
        process(serve_nodes) as (api, api_port),
    ):
        kubeconfig = Path(folder) / "kubeconfig"
        served = NodeApi()
        served.port = api_port
        kubeconfig.write_text(served.kubeconfig("bench"))
        reads, syncs, cpu = [], [], []
        for _ in range(SYNCS):
            reads.append(seconds_to_read(api_port))
            with vramd(kubeconfig) as started:
                syncs.append(started.sync_seconds)
                cpu.append(started.sync_cpu_seconds)
        read, synced = statistics.median(reads), statistics.median(syncs)
        yield Row(
            f"vramd: first sync of {NODES:,} nodes of {NODE_BYTES // 1000} KB",
            f"reading the bytes {read:.2f} s",
            f"{synced:.2f} s ({statistics.median(cpu):.2f} s CPU), median of {SYNCS}",
            "≤ 1 s more",
            synced - read <= 1.0,
        )
        with vramd(kubeconfig) as started:
            pid, port = started.pid, started.port
            rounds = latencies(port, null_port)
            asked = [seconds for each in rounds for seconds in each.asked]
            empty = [seconds for each in rounds for seconds in each.empty]
            more = statistics.median(each.more() for each in rounds)
            yield Row(
                f"vramd: basis for a constrained pod, {NODES:,} nodes",
                f"null gRPC call, p50 {p(0.5, empty) * 1e3:.2f} ms, p99 {p(0.99, empty) * 1e3:.2f} ms",
                f"p50 {p(0.5, asked) * 1e3:.2f} ms, p99 {p(0.99, asked) * 1e3:.2f} ms; "
                f"p99 {more * 1e3:+.2f} ms, median of {ROUNDS} rounds",
                "p99 ≤ 0.5 ms more",
                more <= 0.0005,
            )
            yield change_row("vramd: change of a node until a subscriber has it", change_latencies(port, api))
            webhook.certificates(Path(folder))
            with webhook.webhook(Path(folder), f"127.0.0.1:{port}") as admitting:
                changes = asyncio.run(webhook_latencies(Path(folder), admitting.port, api))
            yield change_row("vramd: change of a node until the webhook's answers follow from it", changes)
            memory = memory_mb(pid)
            burst = burst_seconds(port, api)
            after = memory_mb(pid)
            yield Row(
                f"vramd: resident with {NODES:,} nodes",
                "–",
                f"{memory['VmRSS']:.0f} MB, {after['VmRSS']:.0f} MB after all changed at once, "
                f"at most {after['VmHWM']:.0f} MB",
                "≤ 120 MB",
                max(memory["VmRSS"], after["VmRSS"]) <= 120,
            )
            yield Row(
                f"vramd: {NODES:,} nodes change at once, until a subscriber has the last",
                "–",
                f"{burst * 1e3:.0f} ms",
                "reported",
                None,
            )
