"""Regions made for tests, by the numbers of HAMi's layouts and of `native/hami-core/docs/region.md`.

Shares no code with the reader: what both agree on was written twice.
"""

import fcntl
import os
import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = 19920718
READY_SECONDS = 60
V0_BYTES, V1_BYTES, EXTENSION, END = 1_197_896, 2_008_952, 2_011_136, 3_203_072


@dataclass(frozen=True)
class Use:
    """One process's memory on one device, in bytes; `total` defaults to the sum of the parts."""

    context: int = 0
    module: int = 0
    buffer: int = 0
    sm: int = 0
    total: int | None = None

    def in_total(self) -> int:
        return self.context + self.module + self.buffer if self.total is None else self.total


@dataclass(frozen=True)
class Slot:
    """One process."""

    pid: int
    uses: Sequence[Use] = ()
    status: int = 1
    host_pid: int = 0
    name: str = "python3"
    attached: int = 1_700_000_000


@dataclass(frozen=True)
class Card:
    """One device of the container."""

    uuid: str
    limit: int = 0
    sm_limit: int = 100
    refusals: int = 0
    last_refusal: int = 0
    last_refused: int = 0
    throttled: int = 0


@dataclass(frozen=True)
class RegionImage:
    """What a region file holds."""

    cards: Sequence[Card] = ()
    slots: dict[int, Slot] = field(default_factory=dict)
    last_kernel_time: int = 0
    major: int = 1
    minor: int = 2
    extended: bool = True
    managed: bool = True
    created: int = 1_700_000_000

    def v0(self) -> bytearray:
        """Layout 0, as HAMi's oldest library writes it: 1,197,897 bytes."""
        data = bytearray(V0_BYTES + 1)
        struct.pack_into("<i", data, 0, MAGIC)
        self._cards(data, 48)
        for index, slot in self.slots.items():
            at = 1848 + 1168 * index
            struct.pack_into("<ii", data, at, slot.pid, slot.host_pid)
            for device, use in enumerate(slot.uses):
                parts = (use.context, use.module, use.buffer, 0, use.in_total())
                struct.pack_into("<5Q", data, at + 8 + 40 * device, *parts)
                struct.pack_into("<Q", data, at + 776 + 24 * device + 16, use.sm)
            struct.pack_into("<i", data, at + 1160, slot.status)
        struct.pack_into("<4i", data, 1_197_880, self._slots_used(), 1, 2, 1)
        return data

    def v1(self) -> bytearray:
        """Layout 1: 2,008,953 bytes as HAMi-core makes them, or 3,203,072 with the extension block."""
        data = bytearray(END if self.extended else V1_BYTES + 1)
        struct.pack_into("<3i", data, 0, MAGIC, self.major, self.minor)
        self._cards(data, 56)
        for index, slot in self.slots.items():
            at = 1856 + 1960 * index
            struct.pack_into("<ii", data, at, slot.pid, slot.host_pid)
            for device, use in enumerate(slot.uses):
                parts = (use.context, use.module, use.buffer, 0, use.in_total())
                struct.pack_into("<5Q", data, at + 8 + 64 * device, *parts)
                struct.pack_into("<Q", data, at + 1160 + 48 * device + 16, use.sm)
            struct.pack_into("<i", data, at + 1928, slot.status)
        struct.pack_into("<4iQ", data, 2_008_896, self._slots_used(), 1, 2, 1, self.last_kernel_time)
        if self.extended:
            self._extension(data)
        return data

    def _slots_used(self) -> int:
        return max(self.slots, default=-1) + 1

    def _cards(self, data: bytearray, at: int) -> None:
        struct.pack_into("<Q", data, at, len(self.cards))
        for index, card in enumerate(self.cards):
            uuid = card.uuid.encode()
            data[at + 8 + 96 * index : at + 8 + 96 * index + len(uuid)] = uuid
            struct.pack_into("<Q", data, at + 8 + 1536 + 8 * index, card.limit)
            struct.pack_into("<Q", data, at + 8 + 1536 + 128 + 8 * index, card.sm_limit)

    def _extension(self, data: bytearray) -> None:
        header = (b"ISOLATOR", 1, int(self.managed), 1_191_936, 1024, 16, self.created)
        struct.pack_into("<8sIIQIIQ", data, EXTENSION, *header)
        for index, card in enumerate(self.cards):
            at = EXTENSION + 4096 + 512 * index
            total = sum(slot.uses[index].in_total() for slot in self.slots.values() if index < len(slot.uses))
            struct.pack_into("<Q", data, at, total)
            struct.pack_into("<Q", data, at + 64, card.limit)
            struct.pack_into("<3Q", data, at + 88, card.refusals, card.last_refusal, card.last_refused)
            struct.pack_into("<Q", data, at + 128, card.throttled)
        for index, slot in self.slots.items():
            at = EXTENSION + 12_288 + 128 * index
            struct.pack_into("<IIQQQQ", data, at, 1, slot.pid, 1, 1, 1, slot.attached)
            struct.pack_into("<16s", data, at + 56, slot.name.encode())
            for device, use in enumerate(slot.uses):
                struct.pack_into("<qQ", data, EXTENSION + 143_360 + 64 * (16 * index + device), 0, use.in_total())


def write(directory: Path, data: bytes | bytearray) -> Path:
    """Put a region into a container's directory, which is made, with an empty `usage.lock` beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "usage.lock").touch()
    path = directory / "usage.cache"
    path.write_bytes(data)
    return path


@contextmanager
def hold(lock: Path, slots: Sequence[int]) -> Iterator[dict[int, int]]:
    """Own slots by one child process each, as a program does that uses CUDA. Gives the children's PIDs by slot."""
    children: dict[int, int] = {}
    ready, tell = os.pipe()
    parent = os.getpid()
    try:
        for slot in slots:
            child = os.fork()
            if child == 0:
                try:
                    descriptor = os.open(lock, os.O_RDWR)
                    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, slot)
                    os.write(tell, b".")
                    while os.getppid() == parent:
                        time.sleep(1)
                finally:
                    os._exit(1)
            children[slot] = child
        for _ in slots:
            assert select.select([ready], [], [], READY_SECONDS)[0], f"no child owns its slot of {lock} yet"
            os.read(ready, 1)
        yield children
    finally:
        os.close(ready)
        os.close(tell)
        for child in children.values():
            os.kill(child, 9)
            os.waitpid(child, 0)
