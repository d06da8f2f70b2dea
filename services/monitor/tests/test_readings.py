"""What is read of each container, and that one of them costs no other anything."""

from pathlib import Path

import pytest

from isolator_core.region import Kind, Region
from isolator_monitor import readings
from isolator_monitor.readings import read_all
from isolator_monitor.targets import Place, Root, Target
from isolator_testing.regions import Card, RegionImage, Slot, Use, write

IMAGE = RegionImage([Card("GPU-1", 7), Card("GPU-2")], {0: Slot(1, [Use(1, 2, 3), Use(4)]), 3: Slot(2, [Use(10)])})


def target(uid: str) -> Target:
    return Target(uid, "main", (Place(Root.REGIONS, (f"{uid}_main",)),), None)


def test_sums_by_device_without_the_processes_memory(tmp_path: Path) -> None:
    write(tmp_path / "u_main", RegionImage(IMAGE.cards, IMAGE.slots, extended=False).v1())
    (reading,) = read_all([target("u")], {Root.REGIONS: [tmp_path]})
    assert [(memory.context, memory.module, memory.buffer, memory.total) for memory in reading.held] == [
        (11, 2, 3, 16),
        (4, 0, 0, 4),
    ]
    assert reading.region is not None
    assert [(process.pid, process.memory) for process in reading.region.processes] == [(1, ()), (2, ())]


def test_the_first_place_that_has_a_region_counts(tmp_path: Path) -> None:
    for name, limit in (("a", 1), ("b", 2)):
        write(tmp_path / name / "u_main", RegionImage([Card("GPU-1", limit)], {}).v1())
    (tmp_path / "wrong" / "u_main").mkdir(parents=True)
    (tmp_path / "wrong" / "u_main" / "usage.cache").write_bytes(b"PK\3\4" * 100)
    roots = {Root.REGIONS: [tmp_path / "none", tmp_path / "wrong", tmp_path / "b", tmp_path / "a"]}
    (reading,) = read_all([target("u")], roots)
    assert reading.region is not None
    assert reading.region.devices[0].limit_bytes == 2
    # Where nothing can be read, what is wrong is said and not that nothing is there.
    (reading,) = read_all([target("u")], {Root.REGIONS: [tmp_path / "wrong", tmp_path / "none"]})
    assert (reading.region, reading.error) == (None, Kind.MAGIC)
    (reading,) = read_all([target("v")], roots)
    assert reading.error is Kind.ABSENT


def test_a_fault_of_ours_costs_one_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uid in ("u", "v"):
        write(tmp_path / f"{uid}_main", IMAGE.v1())
    read_region = readings.read_region
    faults = [RuntimeError("a fault")]

    def faulty(directory: int) -> Region:
        if faults:
            raise faults.pop()
        return read_region(directory)

    monkeypatch.setattr(readings, "read_region", faulty)
    first, second = read_all([target("u"), target("v")], {Root.REGIONS: [tmp_path]})
    assert (first.region, first.error) == (None, Kind.INTERNAL)
    assert second.region is not None
