"""libvgpu.so: what it adds to the driver's calls, on the fake GPU.

`native_client.c` runs with the library and without it at the same time, and the two are asked for batches in turns.
What a single thread does is measured in CPU time, so that other programs of this machine do not count.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.report import Row
from tests.fakegpu.machine import LIBRARIES, Card, Machine, make_machine
from tests.native.container import ROOT, Container, make_container

ROUNDS = 15
BATCH_NS = 5_000_000
"""About how long a batch of a single thread takes."""
INFO_ROUNDS = 101
"""The fake's cuMemGetInfo asks the kernel, which is less even."""
HAMMERS = 8
HAMMER_PAIRS = 20_000
HAMMER_ROUNDS = 7
STARTS = 25
START_DELAY_NS = 100_000_000
TOGETHER = 64
TOGETHER_ROUNDS = 5

PAIR_BUDGET_NS = 100
INFO_BUDGET_NS = 100
LAUNCHED_ALONE_BUDGET_MS = 1
LAUNCHED_TOGETHER_BUDGET_MS = 5

KILLED_PROGRAMS = 4
KILLS = 2000
WAITED_BUDGET_MS = 50


class Client:
    """A process of native_client.c."""

    def __init__(self, program: Path, lock: Path, environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [program, lock], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.receive()

    def send(self, command: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()

    def receive(self) -> str:
        assert self.popen.stdout is not None
        answer = self.popen.stdout.readline()
        if not answer:
            raise RuntimeError(f"the measuring program ended with {self.popen.wait()}")
        return answer.strip()

    def ask(self, command: str) -> str:
        self.send(command)
        return self.receive()

    def number(self, command: str) -> float:
        return float(self.ask(command))

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait()
        self.popen.stdout.close()


class Place(NamedTuple):
    """Where the measurements happen."""

    program: Path
    lock: Path
    machine: Machine
    container: Container

    def client(self, stack: ExitStack, *, preloaded: bool) -> Client:
        environment = (self.container if preloaded else self.machine).environment()
        client = Client(self.program, self.lock, environment)
        stack.callback(client.close)
        return client

    def both(self, stack: ExitStack) -> tuple[Client, Client]:
        """Without the library, and with it."""
        return self.client(stack, preloaded=False), self.client(stack, preloaded=True)


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = make_place(Path(directory))
        yield from start_rows(place)
        direct, hooked = place.both(stack)
        yield from pair_rows(direct, hooked, attached=1)
        yield many_live_row(direct, hooked)
        yield info_row(Path(directory))
        yield hammer_row(f"{HAMMERS} threads", [direct], [hooked], threads=HAMMERS)
        yield processes_row(place)
        yield kills_row(Path(directory))
        with attached(place, TOGETHER - 1):
            yield from pair_rows(direct, hooked, attached=TOGETHER)


def make_place(folder: Path) -> Place:
    """Compile the program, and make a container of 40 GiB on one fake card of 80."""
    program = folder / "native_client"
    library = ROOT / "native/hami-core/src"
    sources = [Path(__file__).with_name("native_client.c"), library / "records.c", library / "lock.c"]
    compiler, include = os.environ.get("CC", "cc"), f"-I{library}"
    command = [compiler, "-O2", "-std=c11", "-Wall", "-Wextra", "-pthread", include, "-o", str(program)]
    subprocess.run([*command, *map(str, sources), "-ldl"], check=True)
    machine = make_machine(folder, Card(memory_mib=81920))
    machine.nvidia_smi("-L")
    return Place(program, folder / "lock", machine, make_container(machine, folder / "vgpu", memory="40960m"))


@contextmanager
def attached(place: Place, count: int) -> Iterator[None]:
    """So many processes of the container that have started CUDA and wait."""
    with ExitStack() as stack:
        for _ in range(count):
            place.client(stack, preloaded=True).ask("keep 1")
        yield


def in_turns(
    direct: Client, hooked: Client, command: str, *, chased: int = 0, rounds: int = ROUNDS
) -> tuple[float, float, float]:
    """Nanoseconds: a call without the library, what a call with it takes more, a cache miss; medians over the rounds.

    A miss is a step of a pointer chase through so many cache lines, in the process without the library.
    """
    batch = max(1000, int(BATCH_NS / direct.number(f"{command} 1000")))
    commands = [(direct, f"{command} {batch}"), (hooked, f"{command} {batch}")]
    if chased:
        commands.append((direct, f"chase {chased} {batch}"))
    taken = [[client.number(asked) for client, asked in commands] for _ in range(rounds + 1)][1:]
    added = median(batches[1] - batches[0] for batches in taken)
    return median(batches[0] for batches in taken), added, median(batches[2] for batches in taken) if chased else 0.0


def added_row(what: str, baseline: float, added: float, budget: float) -> Row:
    return Row(
        what=what,
        baseline=f"the fake driver: {baseline:.0f} ns",
        measured=f"{added:+.0f} ns ({(baseline + added) / baseline:.2f} ×)",
        budget=f"≤ {budget:.0f} ns more",
        held=added <= budget,
    )


def pair_rows(direct: Client, hooked: Client, attached: int) -> Iterator[Row]:
    for live in (1, 1_000, 10_000):
        for client in (direct, hooked):
            client.ask(f"keep {live}")
        baseline, added, _ = in_turns(direct, hooked, "pairs")
        what = f"cuMemAlloc + cuMemFree, {live:,} live, {attached} process{'es' if attached > 1 else ''} attached"
        yield added_row(what, baseline, added, PAIR_BUDGET_NS)


def many_live_row(direct: Client, hooked: Client) -> Row:
    live = 100_000
    for client in (direct, hooked):
        client.ask(f"keep {live}")
    baseline, added, miss = in_turns(direct, hooked, "pairs", chased=live)
    for client in (direct, hooked):
        client.ask("keep 1")
    return Row(
        what=f"the same, {live:,} live, freed at random",
        baseline=f"the fake driver: {baseline:.0f} ns, a cache miss {miss:.0f} ns",
        measured=f"{added:+.0f} ns ({(baseline + added) / baseline:.2f} ×)",
        budget=f"≤ {PAIR_BUDGET_NS} ns and two misses more",
        held=added <= PAIR_BUDGET_NS + 2 * miss,
    )


def info_row(folder: Path) -> Row:
    """Each process alone on its card: the fake driver asks the kernel of every neighbour whether it lives."""
    with ExitStack() as stack:

        def alone(name: str, *, preloaded: bool) -> Client:
            (folder / name).mkdir()
            return make_place(folder / name).client(stack, preloaded=preloaded)

        direct, hooked = alone("without", preloaded=False), alone("with", preloaded=True)
        baseline, added, _ = in_turns(direct, hooked, "info", rounds=INFO_ROUNDS)
    return added_row("cuMemGetInfo", baseline, added, INFO_BUDGET_NS)


def hammered(clients: Sequence[Client], kind: str, threads: int) -> float:
    """Nanoseconds of wall time a pair, over all threads of all clients."""
    for client in clients:
        client.send(f"{kind} {threads} {HAMMER_PAIRS}")
    times = [tuple(map(int, client.receive().split())) for client in clients]
    begin, end = min(first for first, _ in times), max(last for _, last in times)
    return (end - begin) / (len(clients) * threads * HAMMER_PAIRS)


def hammer_row(what: str, direct: Sequence[Client], hooked: Sequence[Client], threads: int = 1) -> Row:
    """The library beside the same work with a total behind a lock that all threads and processes share."""
    taken = [
        (hammered(direct, "hammer", threads), hammered(direct, "futex", threads), hammered(hooked, "hammer", threads))
        for _ in range(HAMMER_ROUNDS)
    ]
    alone, futex, ours = (median(column) for column in zip(*taken, strict=True))
    return Row(
        what=f"cuMemAlloc + cuMemFree hammered by {what}",
        baseline=f"the fake driver: {alone:.0f} ns, counted behind a futex lock: {futex:.0f} ns",
        measured=f"{ours:.0f} ns ({ours / futex:.2f} × the futex lock)",
        budget="≤ 2 × the futex lock",
        held=ours <= 2 * futex,
    )


def processes_row(place: Place) -> Row:
    with ExitStack() as stack:
        pairs = [place.both(stack) for _ in range(HAMMERS)]
        direct, hooked = [first for first, _ in pairs], [second for _, second in pairs]
        for client in (*direct, *hooked):
            client.ask("keep 0")
        return hammer_row(f"{HAMMERS} processes", direct, hooked)


def slowest(program: Path, environment: dict[str, str]) -> tuple[float, int]:
    """Milliseconds of the slowest call, and how many calls there were; see kills.c."""
    command = [str(program), str(KILLED_PROGRAMS), str(KILLS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"slowest call: ([\d.]+) ms of (\d+)", done.stdout)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"kills ended with {done.returncode}: {done.stdout}{done.stderr}")
    return float(found[1]), int(found[2])


def kills_row(folder: Path) -> Row:
    """Programs beside are killed at random or stopped, and what a call waits beyond the scheduler's queue is seen."""
    program = folder / "kills"
    source, compiler = ROOT / "native/hami-core/tests/kills.c", os.environ.get("CC", "cc")
    libraries = [f"-L{LIBRARIES}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1"]
    subprocess.run([compiler, "-O2", "-std=c11", "-o", str(program), str(source), *libraries], check=True)
    home = folder / "killed"
    home.mkdir()
    machine = make_machine(home, Card(memory_mib=4096))
    machine.nvidia_smi("-L")
    alone, _ = slowest(program, machine.environment())
    ours, calls = slowest(program, make_container(machine, home / "vgpu", memory="4096m").environment())
    return Row(
        what=f"slowest of {calls:,} calls while {KILLS:,} programs beside are killed at random or stopped",
        baseline=f"the fake driver: {alone:.1f} ms",
        measured=f"{ours:.1f} ms",
        budget=f"≤ {WAITED_BUDGET_MS} ms",
        held=ours <= WAITED_BUDGET_MS,
    )


def started(place: Place, count: int, *, preloaded: bool) -> float:
    """Milliseconds that cuInit takes in each of so many processes that call it at once; the median of them."""
    with ExitStack() as stack:
        clients = [place.client(stack, preloaded=preloaded) for _ in range(count)]
        together = time.monotonic_ns() + START_DELAY_NS
        for client in clients:
            client.send(f"init {together}")
        return median(float(client.receive()) for client in clients) / 1e6


def start_rows(place: Place) -> Iterator[Row]:
    for what, count, rounds, budget in (
        ("one process", 1, STARTS, LAUNCHED_ALONE_BUDGET_MS),
        (f"each of {TOGETHER} that start together", TOGETHER, TOGETHER_ROUNDS, LAUNCHED_TOGETHER_BUDGET_MS),
    ):
        taken = [(started(place, count, preloaded=False), started(place, count, preloaded=True)) for _ in range(rounds)]
        baseline, added = median(first for first, _ in taken), median(second - first for first, second in taken)
        yield Row(
            what=f"cuInit, {what}",
            baseline=f"the fake driver: {baseline:.2f} ms",
            measured=f"{added:+.2f} ms",
            budget=f"≤ {budget} ms more",
            held=added <= budget,
        )
