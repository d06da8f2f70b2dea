"""Containers with a compute cap on one fake card, in model time: who had how much of the card.

The library is built with the fake card's clock, so that a minute takes as long as
what happens in it takes to compute, and nothing depends on how fast this machine is.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Self

from tests.fakegpu.machine import LIBRARIES, T4, Machine, make_machine
from tests.native.container import NAME, ROOT, UID, Container, make_container

from isolator_core import names
from isolator_monitor.plan import Plan, Steered
from isolator_monitor.steer import Steering
from isolator_monitor.targets import Place, Root

NATIVE = ROOT / "native/hami-core"
MODEL_LIBRARY = NATIVE / "build/model/libvgpu.so"
SECOND_NS = 1_000_000_000
BEFORE_S = 10
"""Seconds that are not counted: what is learned is learned by then."""
COUNTED_S = 60
WAKING_NS = 100_000
"""How much later than it wants a steerer wakes up."""
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A PID namespace as of a pod; needs root."""
NO_UTILIZATION = "nvmlDeviceGetProcessUtilization=error:3"
"""As on MIG, and the same to the library as not knowing its processes' PIDs on the node."""


@dataclass(frozen=True)
class Load:
    """A container and what each of its processes does.

    kind: how and length as in worker.c, `graph:5ms`, or a length alone. cores: the cap in percent, None for a container
    without the library. active_s: seconds of work, 0 for the whole run. begin_s: seconds before it begins.
    """

    kind: str
    cores: int | None
    active_s: int = 0
    processes: int = 1
    priority: int = 1
    begin_s: int = 0

    def request(self, cores: int) -> dict[str, str]:
        return {"memory": "2048m", "cores": str(cores), "priority": str(self.priority)}

    @property
    def window_s(self) -> int:
        """The larger of a second and ten kernels."""
        number = self.kind.split(":")[-1]
        length_ms = float(number[:-2]) / (1 if number.endswith("ms") else 1000)
        return max(1, -(-int(10 * length_ms) // 1000))


class Talker:
    """A C program that answers a line with a line."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.first = self.receive()

    def send(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def receive(self) -> list[str]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"it ended with {self.popen.wait()}"
        return line.split()

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait(timeout=60)
        self.popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self.popen.kill()
        self.close()


def build(folder: Path) -> None:
    """Build the library for model time, and compile worker and sampler into the folder."""
    subprocess.run(["make", "--no-print-directory", "-C", NATIVE, "model"], check=True, stdout=subprocess.DEVNULL)
    compiler = os.environ.get("CC", "cc")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}/tests", f"-I{ROOT}/tests/fakegpu/src/common"]
    libraries = [f"-L{LIBRARIES}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-lm"]
    for name in ("worker", "sampler"):
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run([compiler, *flags, "-o", str(folder / name), str(source), *libraries], check=True)


@dataclass(frozen=True)
class Worker:
    """What a process says at its end; latencies of requests in ns."""

    launches: int
    latency_ns: int
    worst_latency_ns: int


@dataclass(frozen=True)
class Usage:
    """GPU time in ns that each container had had at each moment of the run."""

    loads: Sequence[Load]
    had: Sequence[Sequence[int]]
    workers: Sequence[Sequence[Worker]]
    moments_a_second: int

    def between(self, index: int, first_s: float, last_s: float) -> float:
        """Percent of the card that a container had between two times of the run."""
        first, last = (self.had[round(time * self.moments_a_second)][index] for time in (first_s, last_s))
        return (last - first) / (last_s - first_s) / SECOND_NS * 100

    def percents(self, index: int) -> list[float]:
        """Percent of the card in each window that counts."""
        step = self.loads[index].window_s
        end = (len(self.had) - 1) // self.moments_a_second
        return [self.between(index, at, at + step) for at in range(BEFORE_S, end - step + 1, step)]

    def mean(self, index: int) -> float:
        values = self.percents(index)
        return sum(values) / len(values)

    def error(self, index: int) -> float:
        """Mean distance of the windows from the cap, in points of a whole card."""
        cap = self.loads[index].cores
        assert cap is not None
        values = self.percents(index)
        return sum(abs(value - cap) for value in values) / len(values)


def _by_container(loads: Sequence[Load], places: Sequence[int]) -> list[int]:
    """The processes take their places on the timeline in the order in which they are started."""
    ends = list(accumulate(load.processes for load in loads))
    return [sum(places[end - load.processes : end]) for load, end in zip(loads, ends, strict=True)]


@contextmanager
def _world(folder: Path, loads: Sequence[Load], settings: dict[str, str]) -> Iterator[list[Container | None]]:
    machine = make_machine(folder, cuda="13.0", timeline="on", clock="model", **settings)
    machine.nvidia_smi("-L")
    containers: list[Container | None] = []
    for number, load in enumerate(loads):
        if load.cores is None:
            containers.append(None)
            continue
        container = make_container(machine, folder / f"vgpu{number}", **load.request(load.cores))
        shutil.copyfile(MODEL_LIBRARY, container.library)
        containers.append(container)
    yield containers


def steering(folder: Path, loads: Sequence[Load]) -> Steering:
    """The monitor's part that writes into regions, for all containers with the library."""
    made = Steering({Root.REGIONS: (folder,)})
    region = (names.CONTAINERS_DIR, names.region_dir(UID, NAME))
    made.adopt(
        Plan(
            tuple(
                Steered(
                    str(number), NAME, (Place(Root.REGIONS, (f"vgpu{number}", *region)),), load.priority, (T4.uuid,)
                )
                for number, load in enumerate(loads)
                if load.cores is not None
            )
        )
    )
    return made


def run(
    folder: Path,
    *loads: Load,
    seconds: int = BEFORE_S + COUNTED_S,
    utilization: bool = True,
    pods: bool = False,
    steered: bool = False,
    moments_a_second: int = 1,
    each_moment: Callable[[float, Sequence[Container | None]], None] | None = None,
    **settings: str,
) -> Usage:
    """Let the containers work for so many seconds of model time, which stands still in each_moment.

    pods: each process has a PID namespace of its own. steered: `isolator-monitor steer` runs on the node.
    """
    variables = {} if utilization else {"FAKEGPU_FAULTS": NO_UTILIZATION}
    with _world(folder, loads, {"seed": "1", **settings}) as containers, ExitStack() as stack:
        machine = Machine(folder / "fakegpu.conf")
        workers: list[list[Talker]] = []
        for load, container in zip(loads, containers, strict=True):
            environment = (container or machine).environment(**variables)
            how, _, length = load.kind.rpartition(":")
            command: list[str | Path] = [
                folder / "worker",
                how or "launch",
                length,
                str(load.active_s),
                str(load.begin_s),
            ]
            command = [*OWN_PIDS, *command] if pods else command
            workers.append([stack.enter_context(Talker(command, environment)) for _ in range(load.processes)])
        timeline = folder / "state.timeline"
        sampler = stack.enter_context(Talker([folder / "sampler", timeline], machine.environment()))
        begin = int(sampler.first[1])
        for worker in chain.from_iterable(workers):
            worker.send(str(begin + seconds * SECOND_NS))
        had = []
        steerer = steering(folder, loads) if steered else None
        wake_ns = begin
        for moment in range(seconds * moments_a_second + 1):
            moment_ns = begin + moment * SECOND_NS // moments_a_second
            while steerer and wake_ns < moment_ns:
                sampler.send(str(wake_ns))
                sampler.receive()
                wake_ns = steerer.step(wake_ns) + WAKING_NS
            sampler.send(str(moment_ns))
            had.append(_by_container(loads, [int(value) for value in sampler.receive()]))
            if each_moment is not None:
                each_moment(moment / moments_a_second, containers)
        sampler.close()
        if steerer:
            steerer.close()
        said = [[Worker(*map(int, worker.receive())) for worker in group] for group in workers]
        return Usage(loads, had, said, moments_a_second)
