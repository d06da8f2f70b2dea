"""Every field of every layout is read from where HAMi and the C library put it."""

from ctypes import sizeof
from pathlib import Path

import pytest

from isolator_core.region import (
    Device,
    Memory,
    Process,
    Region,
    extension,
    layout_v0,
    layout_v1,
    open_beneath,
    read_region,
)
from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write

CARDS = (
    Card("GPU-00000000-0000-0000-0000-000000000001", 4147 << 20, 30, 3, 1_700_000_009, 2 << 30, 1_500_000_000),
    Card("GPU-00000000-0000-0000-0000-000000000002", 0),
)
SLOTS = {
    0: Slot(11, (Use(100, 20, 3, sm=40), Use(1, 2, 3))),
    1: Slot(0, (Use(9, 9, 9),), status=0),
    5: Slot(12, (Use(1000, 0, 1 << 30, sm=7),), name="trainer"),
}


def read(directory: Path) -> Region:
    with open_beneath(directory) as descriptor:
        return read_region(descriptor)


def test_offsets_are_those_that_hami_publishes() -> None:
    """HAMi: `TestSharedRegionTLayoutMatchesCABI`; the extension by the library's own page."""
    region, slot, header, trailer = layout_v1.Region, layout_v1.Slot, layout_v1.Header, layout_v1.Trailer
    assert (sizeof(region), sizeof(slot)) == (2_008_952, 1960)
    assert (header.owner_pid.offset, header.sem.offset, header.device_num.offset, header.uuids.offset) == (
        16,
        24,
        56,
        64,
    )
    assert (header.limit.offset, header.sm_limit.offset, region.procs.offset) == (1600, 1728, 1856)
    assert (slot.used.offset, slot.monitorused.offset, slot.device_util.offset) == (8, 1032, 1160)
    assert (slot.status.offset, slot.seqlock.offset) == (1928, 1936)
    assert region.trailer.offset == 2_008_896
    assert (trailer.priority.offset, trailer.last_kernel_time.offset, trailer.sem_postinit.offset) == (12, 16, 24)
    assert (sizeof(layout_v0.Region), sizeof(layout_v0.Slot)) == (1_197_896, 1168)
    assert (layout_v0.Header.device_num.offset, layout_v0.Header.uuids.offset) == (48, 56)
    assert (layout_v0.Header.limit.offset, layout_v0.Header.sm_limit.offset) == (1592, 1720)
    assert (layout_v0.SLOTS_OFFSET, layout_v0.TRAILER_OFFSET) == (1848, 1_197_880)
    old = layout_v0.Slot
    assert (old.monitorused.offset, old.device_util.offset, old.status.offset) == (648, 776, 1160)
    assert (extension.BYTES, extension.END) == (1_191_936, 3_203_072)
    assert (extension.Block.devices.offset, extension.Block.slots.offset, extension.Block.lanes.offset) == (
        4096,
        12_288,
        143_360,
    )
    device = extension.Device
    assert [getattr(device, name).offset for name in ("limit", "card_total", "cuda_total", "refusals")] == [
        64,
        72,
        80,
        88,
    ]
    assert [getattr(device, name).offset for name in ("last_refusal", "last_refused", "throttled")] == [96, 104, 128]
    assert [getattr(device, name).offset for name in ("order", "balance", "refilled")] == [136, 192, 208]
    own = extension.Slot
    assert (own.attached.offset, own.throttled.offset, own.name.offset, own.host.offset) == (32, 48, 56, 72)
    assert (sizeof(device), sizeof(own), sizeof(extension.Lane)) == (512, 128, 64)


def test_extended_region_of_this_library(tmp_path: Path) -> None:
    write(tmp_path, RegionImage(CARDS, SLOTS, last_kernel_time=1_700_000_005).v1())
    with hold(tmp_path / "usage.lock", [0, 5]) as owners:
        region = read(tmp_path)
    nothing = Memory(0, 0, 0, 0, 0)
    assert region == Region(
        layout="1.2",
        extended=True,
        managed=True,
        liveness=True,
        inode=(tmp_path / "usage.cache").stat().st_ino,
        created=1_700_000_000,
        devices=(
            Device(0, CARDS[0].uuid, 4147 << 20, 30, 3, 1_700_000_009, 2 << 30, 1_500_000_000),
            Device(1, CARDS[1].uuid, 0, 100),
        ),
        processes=(
            Process(0, 11, owners[0], "python3", 1_700_000_000, (Memory(100, 20, 3, 123, 40), Memory(1, 2, 3, 6, 0))),
            Process(
                5, 12, owners[5], "trainer", 1_700_000_000, (Memory(1000, 0, 1 << 30, 1000 + (1 << 30), 7), nothing)
            ),
        ),
        last_kernel_time=1_700_000_005,
    )


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_region_of_hami_core(tmp_path: Path, minor: int) -> None:
    write(tmp_path, RegionImage(CARDS, SLOTS, last_kernel_time=7, minor=minor, extended=False).v1())
    region = read(tmp_path)
    assert (region.layout, region.extended, region.liveness) == (f"1.{minor}", False, False)
    assert [(process.slot, process.pid, process.memory[0].total) for process in region.processes] == [
        (0, 11, 123),
        (5, 12, 1000 + (1 << 30)),
    ]
    assert region.devices[0] == Device(0, CARDS[0].uuid, 4147 << 20, 30)
    assert region.last_kernel_time == 7


def test_region_of_layout_0(tmp_path: Path) -> None:
    write(tmp_path, RegionImage(CARDS, SLOTS).v0())
    region = read(tmp_path)
    assert region.layout == "0"
    assert [(process.slot, process.memory) for process in region.processes] == [
        (0, (Memory(100, 20, 3, 123, 40), Memory(1, 2, 3, 6, 0))),
        (5, (Memory(1000, 0, 1 << 30, 1000 + (1 << 30), 7), Memory(0, 0, 0, 0, 0))),
    ]
    assert [device.limit_bytes for device in region.devices] == [4147 << 20, 0]
    assert region.last_kernel_time == 0


def test_extension_flag_of_an_unmanaged_container(tmp_path: Path) -> None:
    write(tmp_path, RegionImage(CARDS, {}, managed=False).v1())
    assert not read(tmp_path).managed


def test_limit_that_hami_core_takes_for_none_is_none(tmp_path: Path) -> None:
    """HAMi-core parses `-1` as 2^64 - 1."""
    write(tmp_path, RegionImage([Card("GPU-1", (1 << 64) - 1)], {}, extended=False).v1())
    assert read(tmp_path).devices[0].limit_bytes == 0
