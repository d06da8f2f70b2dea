"""Any bytes as a region: the input language of the fuzzers, and what must hold whatever a file says.

`python -m isolator_testing.region_fuzz CORPUS… [-max_total_time=600 …]` runs libFuzzer by atheris.

An input is one byte (which region to begin with), four (the file's size, the highest bit kept for "leave it"), then
patches: three bytes of offset, one of length, and so many bytes. Small inputs so reach every field of a 3 MB file.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from isolator_core.region import Region, RegionError, open_beneath, read_region
from isolator_testing.regions import Card, RegionImage, Slot, Use

_LARGEST_VALUE = 1 << 50
_KEEP_SIZE = 1 << 31
_IMAGE = RegionImage(
    [Card("GPU-00000000-0000-0000-0000-000000000001", 1 << 32), Card("GPU-2", 1 << 30)],
    {0: Slot(7, [Use(1, 2, 3), Use(4, 5, 6)]), 2: Slot(8, [Use(buffer=9)])},
    last_kernel_time=5,
)
BASES = (
    bytes(_IMAGE.v1()),
    bytes(RegionImage(_IMAGE.cards, _IMAGE.slots, extended=False).v1()),
    bytes(_IMAGE.v0()),
)


def decode(data: bytes) -> tuple[int, int | None, list[tuple[int, bytes]]]:
    """An input as base, size (None = the base's) and patches."""
    base = data[0] % len(BASES) if data else 0
    number = int.from_bytes(data[1:5], "little")
    size = None if number & _KEEP_SIZE or len(data) < 5 else number % (4 << 20)
    patches, at = [], 5
    while at + 4 <= len(data):
        length = data[at + 3] % 65
        patches.append((int.from_bytes(data[at : at + 3], "little"), data[at + 4 : at + 4 + length]))
        at += 4 + length
    return base, size, patches


def encode(base: int, size: int | None, patches: list[tuple[int, bytes]]) -> bytes:
    """The input that `decode` takes apart."""
    head = bytes([base]) + (_KEEP_SIZE if size is None else size).to_bytes(4, "little")
    return head + b"".join(offset.to_bytes(3, "little") + bytes([len(data)]) + data for offset, data in patches)


class Files:
    """A region's directory that takes one input after another. Without `usage.lock`, so that the slots count."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "usage.cache"
        self._base: int | None = None

    def write(self, data: bytes) -> None:
        """Make the file what an input says."""
        base, size, patches = decode(data)
        if base != self._base:
            self._path.write_bytes(BASES[base])
            self._base = base
        file = os.open(self._path, os.O_RDWR)
        try:
            for offset, patch in patches:
                os.pwrite(file, patch, offset)
            if size is not None:
                os.ftruncate(file, size)
        finally:
            os.close(file)
        if size is not None or any(offset + len(patch) > len(BASES[base]) for offset, patch in patches):
            self._base = None
        self._patches = patches

    def restore(self) -> None:
        """Undo the last input's patches."""
        if self._base is None:
            return
        file = os.open(self._path, os.O_RDWR)
        for offset, patch in self._patches:
            os.pwrite(file, BASES[self._base][offset : offset + len(patch)], offset)
        os.close(file)


def check(directory: Path) -> Region | None:
    """Read a region: either it is refused by kind, or all that came out is within bounds."""
    try:
        with open_beneath(directory) as descriptor:
            region = read_region(descriptor)
    except RegionError as error:
        refused = error
        region = None
    if region is None:
        assert refused.kind
        assert len(refused.detail) < 1000
        return None
    assert len(region.devices) <= 16
    assert len(region.processes) <= 1024
    assert region.layout in ("0", "1.0", "1.1", "1.2")
    for device in region.devices:
        assert device.uuid.isascii()
        assert len(device.uuid) < 96
        assert device.uuid.isprintable()
        assert 0 <= device.limit_bytes <= _LARGEST_VALUE
    for value in _values(region):
        assert 0 <= value <= _LARGEST_VALUE
    for process in region.processes:
        assert len(process.memory) == len(region.devices)
        assert process.name.isprintable()
        for memory in process.memory:
            assert memory.total >= memory.context + memory.module + memory.buffer
            assert memory.sm_percent <= 100
    return region


def _values(region: Region) -> Iterator[int]:
    for process in region.processes:
        for memory in process.memory:
            yield from (memory.context, memory.module, memory.buffer, memory.total)


def main() -> None:
    """Run libFuzzer."""
    # Only there where it has been installed: it is built for few platforms.
    atheris = importlib.import_module("atheris")
    atheris.instrument_func(read_region)
    for name, module in list(sys.modules.items()):
        if name.startswith("isolator_core.region"):
            for function in vars(module).values():
                if callable(function) and getattr(function, "__module__", "") == name and hasattr(function, "__code__"):
                    atheris.instrument_func(function)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        files = Files(Path(directory))

        def one(data: bytes) -> None:
            files.write(data)
            check(files.directory)
            files.restore()

        atheris.Setup(sys.argv, one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
