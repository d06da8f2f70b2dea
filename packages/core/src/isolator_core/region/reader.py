"""Read one region.

What a file says of itself is believed only as far as its size allows, every count is checked before it is used, and
only the slots that are in use are read. Numbers that no card could hold are refused, so that a tenant cannot poison
sums over containers.
"""

import re
from collections.abc import Iterator
from ctypes import sizeof
from types import ModuleType

import msgspec

from isolator_core import names
from isolator_core.region import extension, layout_v0, layout_v1
from isolator_core.region.errors import Kind, RegionError
from isolator_core.region.locks import held_slots
from isolator_core.region.model import Device, Memory, Process, Region
from isolator_core.region.opening import open_regular, read_exactly

LARGEST_FILE = 64 << 20
LARGEST_VALUE = 1 << 50
"""1 PiB: above every card's memory, and 16 devices × 1,024 processes of it still fit 64 bits."""
MAKING_FILE = "usage.new"
"""The name under which a region is made before it is linked into place."""
_UUID = re.compile(rb"[A-Za-z0-9/-]{0,95}")
_VERSION_BYTES = 12
_ATTEMPTS = 3


def read_region(directory: int) -> Region:
    """Read `usage.cache` in the directory behind a descriptor, with who is attached by `usage.lock` beside it.

    Raises RegionError; its kind says what is wrong. A container that has not used CUDA yet gives `absent`.
    """
    with open_regular(directory, names.REGION_FILE, twin=MAKING_FILE) as (file, found):
        layout = _layout(file, found.st_size)
        header = layout.Header.from_buffer_copy(read_exactly(file, layout.SLOTS_OFFSET, 0))
        trailer = layout.Trailer.from_buffer_copy(read_exactly(file, sizeof(layout.Trailer), layout.TRAILER_OFFSET))
        device_num = _count(header.device_num, layout_v1.DEVICES, "device_num")
        proc_num = _count(trailer.proc_num, layout_v1.SLOTS, "proc_num")
        block = _extension(file, found.st_size) if layout is layout_v1 else None
        owners = _owners(directory) if block else None
        processes = [
            process
            for slot in (range(proc_num) if owners is None else sorted(owners))
            if (process := _process(file, layout, slot, device_num, owners, extended=block is not None))
        ]
        return Region(
            layout="0" if layout is layout_v0 else f"1.{header.minor_version}",
            extended=block is not None,
            managed=block is not None and bool(block.flags & extension.FLAG_MANAGED),
            liveness=owners is not None,
            inode=found.st_ino,
            created=block.created if block else 0,
            devices=tuple(_devices(file, header, device_num, extended=block is not None)),
            processes=tuple(processes),
            last_kernel_time=getattr(trailer, "last_kernel_time", 0),
        )


def _layout(file: int, size: int) -> ModuleType:
    """The module of the file's layout.

    As in HAMi's readers, a size from layout 0's to below layout 1's tells 0; layout 1 says its version.
    """
    if size < _VERSION_BYTES:
        raise RegionError(Kind.NOT_READY, f"{size} bytes are no header yet")
    start = read_exactly(file, _VERSION_BYTES, 0)
    magic, major, minor = (int.from_bytes(start[at : at + 4], "little", signed=True) for at in (0, 4, 8))
    if magic == 0:
        raise RegionError(Kind.NOT_READY, "the magic is not written yet")
    if magic != layout_v1.MAGIC:
        raise RegionError(Kind.MAGIC, f"the file begins with {start[:4].hex()}")
    if not layout_v0.BYTES <= size <= LARGEST_FILE:
        raise RegionError(Kind.SIZE, f"{size} bytes fit no layout")
    if size < layout_v1.BYTES:
        return layout_v0
    if major != layout_v1.MAJOR or minor not in layout_v1.MINORS:
        raise RegionError(Kind.VERSION, f"layout {major}.{minor} is not known")
    return layout_v1


def _count(value: int, most: int, name: str) -> int:
    if not 0 <= value <= most:
        raise RegionError(Kind.COUNT, f"{name} is {value}, at most {most} fit")
    return value


def _extension(file: int, size: int) -> extension.Header | None:
    """The extension block's header, or None where another magic, or none, stands in its place."""
    if size < extension.OFFSET + sizeof(extension.Header):
        return None
    header = extension.Header.from_buffer_copy(read_exactly(file, sizeof(extension.Header), extension.OFFSET))
    if header.magic != extension.MAGIC:
        return None
    if header.version != extension.VERSION:
        raise RegionError(Kind.VERSION, f"extension version {header.version} is not known")
    if header.bytes != extension.BYTES or size < extension.END:
        raise RegionError(Kind.SIZE, f"an extension of {header.bytes} bytes in a file of {size}")
    if (header.slots, header.devices) != (layout_v1.SLOTS, layout_v1.DEVICES):
        raise RegionError(Kind.COUNT, f"the extension says {header.slots} slots and {header.devices} devices")
    return header


def _owners(directory: int) -> dict[int, int] | None:
    """Host PID by slot that is owned, or None where the container removed its lock file."""
    try:
        with open_regular(directory, names.LOCK_FILE) as (file, _):
            return held_slots(file, layout_v1.SLOTS)
    except RegionError as error:
        if error.kind is Kind.ABSENT:
            return None
        raise


def _process(
    file: int, layout: ModuleType, index: int, devices: int, owners: dict[int, int] | None, *, extended: bool
) -> Process | None:
    """The process in a slot, or None for a slot that is not in use (HAMi: pid or status 0)."""
    for _ in range(_ATTEMPTS):
        size = sizeof(layout.Slot)
        slot = layout.Slot.from_buffer_copy(read_exactly(file, size, layout.SLOTS_OFFSET + index * size))
        if owners is None and (slot.pid == 0 or slot.status == 0):
            return None
        memory = tuple(_memory(slot, device) for device in range(devices))
        # A slot is written while it is read; the parts of one moment add up, and HAMi-core's seqlock is even.
        torn = any(use.total < use.context + use.module + use.buffer for use in memory)
        if not torn and not getattr(slot, "seqlock", 0) & 1:
            break
    if torn:
        raise RegionError(Kind.VALUE, f"slot {index} holds less memory in total than in parts")
    if any(max(use.total, use.context, use.module, use.buffer) > LARGEST_VALUE for use in memory):
        raise RegionError(Kind.VALUE, f"slot {index} holds more memory than a card can have")
    name, attached = "", 0
    if extended:
        size = sizeof(extension.Slot)
        own = extension.Slot.from_buffer_copy(read_exactly(file, size, extension.SLOTS_OFFSET + index * size))
        name, attached = _printable(own.name), own.attached
    return Process(
        slot=index,
        pid=slot.pid,
        host_pid=owners[index] if owners else 0,
        name=name,
        attached=attached,
        memory=memory,
    )


def _memory(slot: layout_v0.Slot | layout_v1.Slot, device: int) -> Memory:
    used = slot.used[device]
    return Memory(
        context=used.context_size,
        module=used.module_size,
        buffer=used.data_size,
        total=used.total,
        sm_percent=min(slot.device_util[device].sm_util, 100),
    )


def _devices(
    file: int, header: layout_v0.Header | layout_v1.Header, device_num: int, *, extended: bool
) -> Iterator[Device]:
    for index in range(device_num):
        uuid = header.uuids[index].value
        if not _UUID.fullmatch(uuid):
            raise RegionError(Kind.STRING, f"the UUID of device {index} is {uuid[:96]!r}")
        # HAMi-core turns `-1` and overflows into the greatest number, which means no limit.
        limit = header.limit[index] if header.limit[index] <= LARGEST_VALUE else 0
        device = Device(
            index=index, uuid=uuid.decode(), limit_bytes=limit, sm_limit_percent=min(header.sm_limit[index], 100)
        )
        if extended:
            size = sizeof(extension.Device)
            own = extension.Device.from_buffer_copy(read_exactly(file, size, extension.DEVICES_OFFSET + index * size))
            device = msgspec.structs.replace(
                device,
                refusals=own.refusals,
                last_refusal=own.last_refusal,
                last_refused_bytes=own.last_refused,
                throttled_nanoseconds=own.throttled,
            )
        yield device


def _printable(raw: bytes) -> str:
    """A program's name for people: what is not printable ASCII becomes `?`."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in raw)
