"""One region as the steerer writes into it: opened as hostile as ever, and never made, cut or mapped.

A few words are written, each at a place that follows from the layout and never from what the file says: a slot's
`host`, a device's `order`, and what HAMi-core and HAMi's monitor write, `sm_util` and `recent_kernel`. A tenant that
puts another file of its own in the place gets those bytes into that one.
"""

import os
import re
import struct
from collections.abc import Mapping
from ctypes import sizeof
from dataclasses import dataclass

from isolator_core import names
from isolator_core.region import Kind, RegionError, extension, layout_v1
from isolator_core.region.locks import held_slots
from isolator_core.region.opening import as_region_error, open_regular, read_exactly
from isolator_core.region.reader import MAKING_FILE
from isolator_monitor.orders import Order

_MINOR = 2
"""The layout that this project's library makes."""
_UUID = re.compile(rb"[A-Za-z0-9/-]{0,95}")
_SLOT = struct.Struct("<IIQQQ")
_BUCKET = struct.Struct("<q8xQ")
_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")
_RECENT = layout_v1.TRAILER_OFFSET + layout_v1.Trailer.recent_kernel.offset
_ORDER = struct.Struct("<QQ")
_ORDER_BITS = 7
_SPREAD = 0x9E3779B97F4A7C15
_LOCKS_SECONDS = 0.01
"""Of processor time, a region and pass: an order must not wait for a tenant that holds many locks."""


@dataclass(frozen=True)
class SteeredRegion:
    """A region that is open for writing."""

    file: int
    """A descriptor, closed by `close`."""
    uuids: tuple[str, ...]
    """By device, as the tenant's region says."""
    owners: Mapping[int, int]
    """PID on the node by slot, by the kernel."""

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.file)

    def show_busy(self, device: int, busy: Mapping[int, int]) -> None:
        """Write how busy NVML says each process keeps a device, in percent by PID. Raises RegionError."""
        for slot, pid in self.owners.items():
            offset = layout_v1.SLOTS_OFFSET + slot * sizeof(layout_v1.Slot) + layout_v1.Slot.device_util.offset
            offset += device * sizeof(layout_v1.DeviceUtilisation) + layout_v1.DeviceUtilisation.sm_util.offset
            self._write(offset, _U64.pack(busy.get(pid, 0)))

    def let_rest(self) -> None:
        """Count `recent_kernel` down, as HAMi's monitor does every 5 s; launches set it to 2. Raises RegionError."""
        (recent,) = _I32.unpack(read_exactly(self.file, _I32.size, _RECENT))
        if recent > 0:
            self._write(_RECENT, _I32.pack(min(recent, 2) - 1))

    def paid(self, device: int) -> int:
        """Nanoseconds of GPU time that its launches on a device cost in all. Raises RegionError."""
        offset = extension.DEVICES_OFFSET + device * sizeof(extension.Device) + extension.Device.balance.offset
        balance, refilled = _BUCKET.unpack(read_exactly(self.file, _BUCKET.size, offset))
        return int(refilled - balance)

    def give(self, device: int, order: Order, now_ns: int, free_until_ns: int = 0) -> None:
        """Give an order for a device; both times are of the monotonic clock. Raises RegionError."""
        offset = extension.DEVICES_OFFSET + device * sizeof(extension.Device) + extension.Device.order.offset
        self._write(offset, _ORDER.pack(now_ns & ~_ORDER_BITS | order if order else 0, free_until_ns))

    def _write(self, offset: int, data: bytes) -> None:
        try:
            os.pwrite(self.file, data, offset)
        except OSError as error:
            raise as_region_error(error, f"writing {len(data)} bytes at {offset}") from error


def open_region(directory: int) -> SteeredRegion:
    """Open the region in the directory behind a descriptor, and tell its processes their PIDs. Raises RegionError.

    What is said of a slot carries a mark of the process that was in it *before* the kernel was asked who is, so that it
    means nothing to one that took the slot meanwhile.
    """
    with open_regular(directory, names.REGION_FILE, twin=MAKING_FILE, writable=True) as (opened, found):
        if found.st_size != extension.END:
            raise RegionError(Kind.SIZE, f"{found.st_size} bytes are not a region of this project's library")
        uuids = _uuids(opened)
        marks = _marks(opened)
        region = SteeredRegion(os.dup(opened), uuids, _owners(directory, marks))
    try:
        for slot, pid in region.owners.items():
            host, mark = marks[slot]
            if host != mark << 32 | pid:
                offset = extension.SLOTS_OFFSET + slot * sizeof(extension.Slot) + extension.Slot.host.offset
                region._write(offset, _U64.pack(mark << 32 | pid))
    except RegionError:
        region.close()
        raise
    return region


def _uuids(file: int) -> tuple[str, ...]:
    header = layout_v1.Header.from_buffer_copy(read_exactly(file, sizeof(layout_v1.Header), 0))
    block = extension.Header.from_buffer_copy(read_exactly(file, sizeof(extension.Header), extension.OFFSET))
    if header.magic != layout_v1.MAGIC or block.magic != extension.MAGIC:
        raise RegionError(Kind.MAGIC, "the file is no region of this project's library")
    if (header.major_version, header.minor_version) != (layout_v1.MAJOR, _MINOR) or block.version != extension.VERSION:
        raise RegionError(Kind.VERSION, f"layout {header.major_version}.{header.minor_version}, {block.version}")
    if header.device_num > layout_v1.DEVICES:
        raise RegionError(Kind.COUNT, f"device_num is {header.device_num}, at most {layout_v1.DEVICES} fit")
    uuids = [header.uuids[index].value for index in range(header.device_num)]
    if not all(_UUID.fullmatch(uuid) for uuid in uuids):
        raise RegionError(Kind.STRING, "a device's UUID holds bytes that no UUID has")
    return tuple(uuid.decode() for uuid in uuids)


def _marks(file: int) -> dict[int, tuple[int, int]]:
    """`host` and mark of every slot in use (`native/hami-core/docs/region.md`)."""
    trailer = layout_v1.Trailer.from_buffer_copy(
        read_exactly(file, sizeof(layout_v1.Trailer), layout_v1.TRAILER_OFFSET)
    )
    if not 0 <= trailer.proc_num <= layout_v1.SLOTS:
        raise RegionError(Kind.COUNT, f"proc_num is {trailer.proc_num}, at most {layout_v1.SLOTS} fit")
    size = sizeof(extension.Slot)
    records = read_exactly(file, trailer.proc_num * size, extension.SLOTS_OFFSET)
    found = {}
    for slot in range(trailer.proc_num):
        state, pid, start_time, _, image = _SLOT.unpack_from(records, slot * size)
        if state:
            (host,) = _U64.unpack_from(records, slot * size + extension.Slot.host.offset)
            found[slot] = host, mark(pid, start_time, image)
    return found


def mark(pid: int, start_time: int, image: int) -> int:
    """32 bits that tell a process from those that had its slot before: `slot_mark` of the library."""
    mixed = ((image * _SPREAD ^ start_time) * _SPREAD ^ pid) * _SPREAD
    return mixed >> 32 & 0xFFFFFFFF


def _owners(directory: int, marks: Mapping[int, object]) -> dict[int, int]:
    """PIDs that this node shows, of slots in use."""
    if not marks:
        return {}
    try:
        with open_regular(directory, names.LOCK_FILE) as (file, _):
            owners = held_slots(file, max(marks) + 1, _LOCKS_SECONDS)
    except RegionError as error:
        if error.kind is Kind.ABSENT:
            return {}
        raise
    return {slot: pid for slot, pid in owners.items() if pid and slot in marks}
