"""The compute cap: what it adds to a launch, and how far containers are from their caps in model time."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.report import Row
from tests.compute.model import Load, Usage, build, run
from tests.fakegpu.machine import LIBRARIES, make_machine
from tests.native.container import ROOT, make_container

STARTS = 7
"""Of the programs: where the loader puts them makes nanoseconds."""
ROUNDS = 31
BATCH = 5_000
PAUSE_SECONDS = 0.03
"""Refills the budget of 10 ms, of which a batch takes less: what is measured is a launch that need not wait."""
UNCAPPED_BUDGET_NS = 10
CAPPED_BUDGET_NS = 25
CAPS = (10, 30, 50, 70, 90)
ALONE = {"50us": "50 µs kernels", "50ms": "50 ms kernels", "graph:5ms": "graphs of 5 ms"}
PAIRED = ("50us", "5ms", "50ms", "graph:5ms")
ALONE_BUDGET = 2.0
PAIR_BUDGET = 3.0
REQUESTS = {"request:10ms": "10 ms each 50 ms", "random:10ms": "10 ms at random"}
REQUESTS_S = 20
LATENCY_BUDGET = 1.1


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory:
        yield from launch_rows(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        yield from alone_rows(Path(directory))
        yield from pair_rows(Path(directory))
        yield from priority_rows(Path(directory))


class Client:
    """A process of compute_client.c."""

    def __init__(self, program: Path, environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.receive()

    def receive(self) -> str:
        assert self.popen.stdout is not None
        answer = self.popen.stdout.readline()
        if not answer:
            raise RuntimeError(f"the measuring program ended with {self.popen.wait()}")
        return answer

    def launch_ns(self, count: int) -> float:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{count}\n")
        self.popen.stdin.flush()
        return float(self.receive())

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait()
        self.popen.stdout.close()


def launch_rows(folder: Path) -> Iterator[Row]:
    """A launch in turns without the library, with it, and with a cap."""
    program = folder / "compute_client"
    source = Path(__file__).with_name("compute_client.c")
    compiler = os.environ.get("CC", "cc")
    includes = [f"-I{ROOT}/{place}" for place in ("native/hami-core/tests", "tests/compute")]
    libraries = [f"-L{LIBRARIES}", "-l:libcuda.so.1"]
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", *includes, "-o", program, source, *libraries], check=True)
    machine = make_machine(folder)
    machine.nvidia_smi("-L")
    uncapped = make_container(machine, folder / "uncapped", memory="2048m")
    capped = make_container(machine, folder / "capped", memory="2048m", cores="50")
    taken = []
    for _ in range(STARTS):
        with ExitStack() as stack:
            clients = [Client(program, place.environment()) for place in (machine, uncapped, capped)]
            for client in clients:
                stack.callback(client.close)
                for _ in range(20):
                    client.launch_ns(BATCH)
            for _ in range(ROUNDS):
                time.sleep(PAUSE_SECONDS)
                taken.append([client.launch_ns(BATCH) for client in clients])
    baseline = median(times[0] for times in taken)
    for index, what, budget in ((1, "without", UNCAPPED_BUDGET_NS), (2, "with", CAPPED_BUDGET_NS)):
        added = median(times[index] - times[0] for times in taken)
        yield Row(
            what=f"cuLaunchKernel {what} a compute cap",
            baseline=f"the fake driver: {baseline:.0f} ns",
            measured=f"{added:+.0f} ns",
            budget=f"≤ {budget} ns more",
            held=added <= budget,
        )


def _run(folder: Path, *loads: Load, **options: Any) -> Usage:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for name in ("worker", "sampler"):
            (Path(place) / name).symlink_to(folder / name)
        return run(Path(place), *loads, **options)


def alone_rows(folder: Path) -> Iterator[Row]:
    for kind, name in ALONE.items():
        uncapped = _run(folder, Load(kind, None))
        for cap in CAPS:
            usage = _run(folder, Load(kind, cap))
            error = usage.error(0)
            yield Row(
                what=f"alone, {name}, cap {cap} %",
                baseline=f"no library: {uncapped.mean(0):.1f} %",
                measured=f"{usage.mean(0):.1f} %, error {error:.2f} points",
                budget=f"error ≤ {ALONE_BUDGET:.0f} points, mean within 3 % of the cap",
                held=error <= ALONE_BUDGET and abs(usage.mean(0) - cap) <= 0.03 * cap,
            )


def pair_rows(folder: Path) -> Iterator[Row]:
    for first in PAIRED:
        for second in PAIRED:
            free = _run(folder, Load(first, None), Load(second, None))
            for utilization in (True, False):
                usage = _run(folder, Load(first, 30), Load(second, 70), utilization=utilization)
                errors = usage.error(0), usage.error(1)
                over = max(usage.mean(0) - 30, usage.mean(1) - 70)
                yield Row(
                    what=f"30 % ({first}) beside 70 % ({second}), PIDs {'known' if utilization else 'unknown'}",
                    baseline=f"no library: {free.mean(0):.1f} / {free.mean(1):.1f} %",
                    measured=f"{usage.mean(0):.1f} / {usage.mean(1):.1f} %, "
                    f"error {errors[0]:.2f} / {errors[1]:.2f} points",
                    budget=f"error ≤ {PAIR_BUDGET:.0f} points"
                    if utilization
                    else f"≤ {PAIR_BUDGET:.0f} points above the cap",
                    held=max(errors) <= PAIR_BUDGET if utilization else over <= PAIR_BUDGET,
                )


def priority_rows(folder: Path) -> Iterator[Row]:
    """Requests of a container of priority 0, alone and beside one that fills the rest."""
    for requests, name in REQUESTS.items():
        alone = _run(folder, Load(requests, 100, priority=0), seconds=REQUESTS_S).workers[0][0].latency_ns
        for filler in PAIRED:
            loads = Load(requests, 100, priority=0), Load(filler, 100, begin_s=2)
            free = _run(folder, *loads, seconds=REQUESTS_S).workers[0][0].latency_ns
            usage = _run(folder, *loads, seconds=REQUESTS_S, steered=True)
            latency = usage.workers[0][0].latency_ns
            yield Row(
                what=f"priority 0, {name}, beside {filler}",
                baseline=f"alone {alone / 1e6:.2f} ms, without priority {free / 1e6:.2f} ms",
                measured=f"{latency / 1e6:.2f} ms, neighbour {usage.between(1, 10, REQUESTS_S):.1f} %",
                budget=f"≤ {LATENCY_BUDGET} × alone",
                held=latency <= LATENCY_BUDGET * alone,
            )
