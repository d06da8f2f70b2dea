"""What the server lets the steerer do: decided by what the API server, the kubelet and NVML say, and by no tenant."""

from dataclasses import replace

import pytest

from isolator_core.region import Device, Region
from isolator_monitor.containers import ContainerState
from isolator_monitor.gpus import Gpu, GpuProcess
from isolator_monitor.limit_files import LimitFiles
from isolator_monitor.plan import FIRST, LAST
from isolator_monitor.planning import plan
from isolator_monitor.readings import Reading
from isolator_monitor.targets import Place, Root, Target

PLACE = Place(Root.KUBELET, ("pods", "u"))
REGION = Region("1.2", True, True, True, 1, 1, (Device(0, "GPU-claimed", 0, 100),), (), 0)
STATE = ContainerState(
    namespace="team",
    pod="a",
    uid="u",
    container="main",
    index="0",
    devices=(),
    request=None,
    reading=Reading("u", "main", REGION, limit_files=LimitFiles("container=main\nmemory=1m\npriority=0\n", None)),
    region=REGION,
    error="",
    detail="",
    promised=(None, ""),
    cards=frozenset({"GPU-2", "GPU-1"}),
)
TARGET = Target("u", "main", (PLACE,), None)


def test_a_container_goes_where_its_pod_says_with_the_cards_that_it_was_given() -> None:
    (steered,) = plan([STATE], [], [TARGET, Target("v", "main", (), None)]).containers
    assert (steered.uid, steered.container, steered.region) == ("u", "main", (PLACE,))
    assert (steered.priority, steered.cards) == (FIRST, ("GPU-1", "GPU-2"))


@pytest.mark.parametrize(
    "request_text",
    [None, "container=main\nmemory=1m\n", "container=main\nmemory=1m\npriority=1\n", "priority=0\n", "priority=0"],
)
def test_first_is_only_whose_valid_limits_say_so(request_text: str | None) -> None:
    reading = Reading("u", "main", REGION, limit_files=LimitFiles(request_text, None))
    (steered,) = plan([replace(STATE, reading=reading)], [], [TARGET]).containers
    assert steered.priority == LAST
    (steered,) = plan([replace(STATE, reading=Reading("u", "main", REGION))], [], [TARGET]).containers
    assert steered.priority == LAST


def test_regions_of_other_libraries_are_left_alone() -> None:
    for region in (replace_region(extended=False), replace_region(managed=False)):
        assert plan([replace(STATE, region=region)], [], [TARGET]).containers == ()


def test_a_container_is_known_before_it_has_a_region_and_not_without_a_place_for_one() -> None:
    (steered,) = plan([replace(STATE, region=None)], [], [TARGET]).containers
    assert steered.priority == FIRST
    assert plan([STATE], [], [Target("u", "main", (), None)]).containers == ()


def replace_region(*, extended: bool = True, managed: bool = True) -> Region:
    return Region("1.2", extended, managed, True, 1, 1, (), (), 0)


def test_only_cards_that_tell_of_processes_are_told_of() -> None:
    gpus = [
        Gpu(0, "GPU-0", "", None, None, None, (GpuProcess(7, None, 42), GpuProcess(8, None, 0))),
        Gpu(1, "GPU-1", "", None, None, None, (GpuProcess(7, None, None),)),
        Gpu(2, "GPU-2", "", None, None, None, None),
        Gpu(3, "GPU-3", "", None, None, None, ()),
    ]
    assert plan([], gpus, []).busy == {"GPU-0": {7: 42}, "GPU-3": {}}
