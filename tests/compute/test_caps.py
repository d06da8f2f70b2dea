"""How well a compute cap holds on the fake card: errors are points of a whole card."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from tests.compute.model import Load, Usage, run
from tests.native.container import Container

from isolator_core.region import Region

Model = Callable[..., Usage]
CAPS = (10, 30, 50, 70, 90)
ALONE = ("50us", "50ms", "graph:5ms")
PAIRED = ("50us", "5ms", "50ms", "graph:5ms")
CHANGES = [(30, 70), (70, 30), (10, 100)]
PAIRS = list(product(PAIRED, repeat=2))


@pytest.mark.parametrize("utilization", [True, False], ids=["pids-known", "pids-unknown"])
@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("cap", CAPS)
def test_a_container_alone_reaches_its_cap_and_keeps_it(model: Model, cap: int, kind: str, utilization: bool) -> None:
    usage = model(Load(kind, cap), utilization=utilization)
    assert usage.error(0) <= 2
    assert usage.mean(0) == pytest.approx(cap, rel=0.03)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_containers_keep_their_caps_where_pids_are_known(model: Model, first: str, second: str) -> None:
    usage = model(Load(first, 30), Load(second, 70))
    assert usage.error(0) <= 3
    assert usage.error(1) <= 3


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_where_pids_are_unknown_nobody_is_above_the_cap(model: Model, first: str, second: str) -> None:
    usage = model(Load(first, 30), Load(second, 70), utilization=False)
    for index, cap in enumerate((30, 70)):
        assert usage.mean(index) <= cap + 3
        assert usage.mean(index) >= cap / 2 - 1


@pytest.mark.root
@pytest.mark.parametrize(
    ("first", "second"), [("5ms", "50us"), ("50us", "50ms"), ("50ms", "50ms"), ("5ms", "graph:5ms")]
)
def test_two_pods_keep_their_caps_since_the_monitor_tells_them_their_pids(
    model: Model, first: str, second: str
) -> None:
    """In PID namespaces of their own they know none; each of these pairs misses a cap by 12 points without it."""
    usage = model(Load(first, 30), Load(second, 70), pods=True, steered=True)
    assert usage.error(0) <= 3
    assert usage.error(1) <= 3


@pytest.mark.root
def test_pods_without_the_monitor_do_not_know_their_pids(model: Model) -> None:
    usage = model(Load("5ms", 30), Load("50us", 70), pods=True)
    assert usage.mean(0) == pytest.approx(15.8, abs=1)


def test_a_neighbour_without_a_cap_takes_nothing_away(model: Model) -> None:
    usage = model(Load("50ms", 30), Load("50ms", None))
    assert usage.error(0) <= 2


def test_a_load_below_its_cap_is_left_alone(model: Model) -> None:
    usage = model(Load("20%:5ms", 30))
    assert usage.mean(0) == pytest.approx(20, abs=0.5)


def test_processes_of_a_container_share_one_cap(model: Model) -> None:
    usage = model(Load("5ms", 30, processes=3), Load("5ms", 50))
    assert usage.error(0) <= 3
    launches = [worker.launches for worker in usage.workers[0]]
    assert max(launches) < 2 * min(launches)


@pytest.mark.parametrize(
    ("before", "after", "kind"), [*((*caps, kind) for caps in CHANGES for kind in ALONE), (100, 30, "50us")]
)
def test_a_changed_cap_holds_within_half_a_second(model: Model, before: int, after: int, kind: str) -> None:
    """A cap set where none was does too, once what was launched before is done: a thousand launches may wait."""

    def change(time: float, containers: Sequence[Container | None]) -> None:
        if time == 20 and containers[0] is not None:
            containers[0].limit(memory="2048m", cores=str(after))

    usage = model(Load(kind, before), seconds=40, moments_a_second=2, each_moment=change)
    assert usage.between(0, 10, 20) == pytest.approx(before, abs=2)
    assert usage.between(0, 20.5, 22.5) == pytest.approx(after, abs=3)
    assert usage.between(0, 22.5, 40) == pytest.approx(after, abs=2)


def test_a_cap_is_not_forgotten_when_a_neighbour_leaves(model: Model) -> None:
    """Beside it 70 % was out of reach; what was launched meanwhile still runs, and then the cap holds again."""
    usage = model(Load("5ms", 70), Load("5ms", None, active_s=30))
    assert usage.between(0, 10, 30) == pytest.approx(50, abs=2)
    assert usage.between(0, 0, 60) <= 70
    assert usage.between(0, 48, 70) == pytest.approx(70, abs=2)


RECENT_KERNEL_OFFSET = 2008904


def hamis_feedback(containers: Sequence[Container | None]) -> None:
    """What HAMi's monitor does every 5 s: while the first container launches, the second is blocked."""
    recents: list[int] = []
    for container in containers:
        assert container is not None
        with (container.region_folder / "usage.cache").open("r+b") as region:
            region.seek(RECENT_KERNEL_OFFSET)
            recent = int.from_bytes(region.read(4), "little", signed=True)
            recent -= recent > 0
            blocked = bool(recents) and recents[0] > 0
            recent = -1 if blocked else max(recent, 0)
            region.seek(RECENT_KERNEL_OFFSET)
            region.write(recent.to_bytes(4, "little", signed=True))
            recents.append(recent)


def test_hamis_monitor_gives_way_to_priority(model: Model) -> None:
    """The high one keeps its latency, the low one has the card when the high one rests."""

    def feedback(time: float, containers: Sequence[Container | None]) -> None:
        if time % 5 == 0:
            hamis_feedback(containers)

    first, second = Load("request:10ms", 99, active_s=60, priority=0), Load("50us", 99)
    alone = model(first).workers[0][0].latency_ns
    usage = model(first, second, seconds=120, each_moment=feedback)
    assert usage.between(1, 10, 60) < 1
    assert usage.between(1, 80, 120) == pytest.approx(99, abs=2)
    assert usage.workers[0][0].latency_ns == pytest.approx(alone, rel=0.1)


REQUESTS_S = 20
FILLING_S = 2


@pytest.fixture(scope="module")
def latency_alone(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Nanoseconds from launch to end of a request that has the card for itself."""

    def alone(kind: str) -> int:
        folder = tmp_path_factory.mktemp("alone")
        for name in ("worker", "sampler"):
            (folder / name).symlink_to(programs / name)
        return run(folder, Load(kind, 100, priority=0), seconds=REQUESTS_S).workers[0][0].latency_ns

    return {kind: alone(kind) for kind in ("request:10ms", "random:10ms")}


@pytest.mark.parametrize(
    ("requests", "filler", "filled"),
    [
        ("request:10ms", "50us", 70),
        ("request:10ms", "1ms", 55),
        ("request:10ms", "graph:5ms", 50),
        ("request:10ms", "50ms", 0),
        ("random:10ms", "50us", 65),
        ("random:10ms", "graph:5ms", 0),
    ],
)
def test_priority_0_keeps_its_latency_while_priority_1_fills_the_rest(
    model: Model, latency_alone: dict[str, int], requests: str, filler: str, filled: int
) -> None:
    """Of 80 % that are left; what does not fit between two requests waits until there are none for a second."""
    first, second = Load(requests, 100, priority=0), Load(filler, 100, begin_s=FILLING_S)
    usage = model(first, second, seconds=REQUESTS_S, steered=True)
    assert usage.workers[0][0].latency_ns <= 1.1 * latency_alone[requests]
    assert usage.between(1, 10, REQUESTS_S) >= filled


def test_priority_1_has_the_card_when_priority_0_rests(model: Model) -> None:
    usage = model(Load("request:10ms", 100, active_s=5, priority=0), Load("50ms", 100), seconds=20, steered=True)
    assert usage.between(1, 7, 20) >= 97


def test_priority_does_not_lift_a_cap(model: Model) -> None:
    usage = model(Load("5ms", 30, priority=0), Load("50us", 50), seconds=20, steered=True)
    assert usage.between(0, 10, 20) == pytest.approx(30, abs=1)
    assert usage.between(1, 10, 20) <= 51


SWITCH_OFFSET = 2008900
SM_UTIL_OFFSET = 1856 + 1160 + 16
THROTTLED_OFFSET = 2011136 + 4096 + 128


@pytest.mark.parametrize("cap", [30, 100])
def test_monitors_are_told_the_truth_in_every_state(model: Model, cap: int) -> None:
    """At work until the tenth second, then at rest; `sm_util` without a cap is the steerer's, by NVML, to write."""
    seen: dict[float, dict[str, int]] = {}

    def read(time: float, containers: Sequence[Container | None]) -> None:
        if time in (8, 12, 28) and containers[0] is not None:
            content = (containers[0].region_folder / "usage.cache").read_bytes()
            words = {"recent": (RECENT_KERNEL_OFFSET, 4), "switch": (SWITCH_OFFSET, 4), "sm": (SM_UTIL_OFFSET, 8)}
            words |= {"throttled": (THROTTLED_OFFSET, 8)}
            seen[time] = {name: int.from_bytes(content[at : at + size], "little") for name, (at, size) in words.items()}

    model(Load("50us", cap, active_s=10), seconds=30, steered=True, each_moment=read)
    assert [seen[time]["recent"] for time in (8, 28)] == [2, 0]
    assert {state["switch"] for state in seen.values()} == {1}
    if cap < 100:
        assert seen[8]["sm"] == pytest.approx(cap, abs=2)
        assert seen[8]["throttled"] / 8e9 == pytest.approx(1, abs=0.1)  # its thread does nothing else
        assert seen[28]["throttled"] == seen[12]["throttled"]
    else:
        assert {state["throttled"] for state in seen.values()} == {0}


def test_monitors_are_told_the_truth(model: Model) -> None:
    regions: list[Region] = []

    def read(time: float, containers: Sequence[Container | None]) -> None:
        if time == 30 and containers[0] is not None:
            regions.append(containers[0].region())

    model(Load("50us", 30), seconds=31, each_moment=read)
    region = regions[0]
    assert region.processes[0].memory[0].sm_percent == pytest.approx(30, abs=2)
    assert region.devices[0].throttled_nanoseconds / 30e9 == pytest.approx(1, abs=0.05)  # its thread does nothing else
    assert region.last_kernel_time >= 30
