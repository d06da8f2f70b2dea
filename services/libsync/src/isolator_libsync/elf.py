"""What an ELF file says of itself: machine, needed libraries, needed and defined symbol versions.

Reads 64-bit little-endian shared objects, the only kind a node of a GPU cluster loads. Layouts: the System V ABI and
the "Symbol Versioning" chapter of the Linux Standard Base.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MACHINES = {62: "x86_64", 183: "aarch64"}
"""`e_machine` and the name that `uname -m` gives such a node."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_VERDAUX = struct.Struct("<II")

_SHARED_OBJECT = 3
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_NEEDED, _STRTAB, _STRSZ = 1, 5, 10
_WEAK = 2
_VERDEF_TAG, _VERDEF_COUNT, _VERNEED_TAG, _VERNEED_COUNT = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF


class ElfError(ValueError):
    """The bytes are not a whole shared object of a kind that is read here. Its text says what is wrong."""


@dataclass(frozen=True)
class SharedObject:
    """What the dynamic section of one shared object says."""

    machine: str
    needed: tuple[str, ...]
    version_needs: dict[str, tuple[str, ...]]
    """By needed library, the symbol versions that it must define."""
    version_definitions: tuple[str, ...]


def parse(content: bytes) -> SharedObject:
    """Read a shared object. Raises ElfError for anything else, and for one that is cut short."""
    try:
        return _parse(content)
    except ElfError:
        raise
    except (struct.error, OverflowError, IndexError, ValueError) as error:
        raise ElfError("it is cut short or damaged") from error


def _parse(content: bytes) -> SharedObject:
    if content[:4] != b"\x7fELF":
        raise ElfError("it is not an ELF file")
    if content[4] != 2 or content[5] != 1:
        raise ElfError("it is not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(content)
    kind, machine, segment_offset, segment_count = header[1], header[2], header[5], header[10]
    if kind != _SHARED_OBJECT:
        raise ElfError("it is not a shared object")
    segments = [_SEGMENT.unpack_from(content, segment_offset + i * _SEGMENT.size) for i in range(segment_count)]
    loads = [_Load(offset, address, size) for kind, _, offset, address, _, size, *_ in segments if kind == _LOAD]
    if not loads or any(load.offset + load.size > len(content) for load in loads):
        raise ElfError("it is cut short or damaged")
    dynamic = [
        entry
        for kind, _, offset, _, _, size, *_ in segments
        if kind == _DYNAMIC_SEGMENT
        for entry in _DYNAMIC.iter_unpack(content[offset : offset + size - size % _DYNAMIC.size])
    ]
    values = dict(dynamic)
    if _STRTAB not in values:
        raise ElfError("it has no dynamic section")
    reader = _Reader(content, loads, values[_STRTAB], values.get(_STRSZ, 0))
    return SharedObject(
        machine=MACHINES.get(machine, f"machine {machine}"),
        needed=tuple(reader.string(value) for tag, value in dynamic if tag == _NEEDED),
        version_needs=dict(reader.needs(values.get(_VERNEED_TAG, 0), values.get(_VERNEED_COUNT, 0))),
        version_definitions=tuple(reader.definitions(values.get(_VERDEF_TAG, 0), values.get(_VERDEF_COUNT, 0))),
    )


@dataclass(frozen=True)
class _Load:
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class _Reader:
    content: bytes
    loads: list[_Load]
    strings_address: int
    strings_size: int

    def offset(self, address: int) -> int:
        for load in self.loads:
            if load.address <= address < load.address + load.size:
                return address - load.address + load.offset
        raise ElfError("it is cut short or damaged")

    def string(self, index: int) -> str:
        start = self.offset(self.strings_address)
        table = self.content[start : start + self.strings_size]
        if index >= len(table):
            raise ElfError("it is cut short or damaged")
        return table[index : table.index(b"\0", index)].decode("ascii", "replace")

    def needs(self, address: int, count: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        position = self.offset(address) if count else 0
        for _ in range(count):
            _, versions, file, first, step = _VERNEED.unpack_from(self.content, position)
            yield self.string(file), tuple(self.needed_versions(position + first, versions))
            if not step:
                return
            position += step

    def needed_versions(self, position: int, count: int) -> Iterator[str]:
        for _ in range(count):
            _, flags, _, name, step = _VERNAUX.unpack_from(self.content, position)
            if not flags & _WEAK:
                yield self.string(name)
            if not step:
                return
            position += step

    def definitions(self, address: int, count: int) -> Iterator[str]:
        position = self.offset(address) if count else 0
        for _ in range(count):
            *_, first, step = _VERDEF.unpack_from(self.content, position)
            name, _ = _VERDAUX.unpack_from(self.content, position + first)
            yield self.string(name)
            if not step:
                return
            position += step
