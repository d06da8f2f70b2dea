"""The ELF reader against binutils, and against damaged files."""

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_libsync import elf
from isolator_testing import tools

FOLDERS = ("/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")
NAMES = (
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libz.so.1",
    "libgcc_s.so.1",
    "libssl.so.3",
    "ld-linux-x86-64.so.2",
)
SYSTEM = sorted(
    {(Path(folder) / name).resolve() for folder in FOLDERS for name in NAMES if (Path(folder) / name).exists()}
)


def readelf(path: Path) -> elf.SharedObject:
    """The same facts as binutils prints them."""
    tool = tools.require("readelf", package="binutils")
    text = subprocess.run([tool, "-W", "-h", "-d", "-V", path], capture_output=True, text=True, check=True).stdout
    machine = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}
    needs: dict[str, tuple[str, ...]] = {}
    definitions: list[str] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("Version "):
            section = line.split()[1]
        if section == "needs" and (file := re.search(r"File: (\S+)", line)):
            needs[file[1]] = ()
        elif section == "needs" and (name := re.search(r"Name: (\S+)  Flags: (.*?)  ", line)) and "WEAK" not in name[2]:
            last = list(needs)[-1]
            needs[last] += (name[1],)
        elif section == "definition" and (name := re.search(r"Rev: \d+ .* Name: (\S+)", line)):
            definitions.append(name[1])
    found = re.search(r"Machine: +(.*)", text)
    assert found
    return elf.SharedObject(
        machine=machine[found[1]],
        needed=tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", text)),
        version_needs=needs,
        version_definitions=tuple(definitions),
    )


def test_system_libraries_are_there_to_compare() -> None:
    assert len(SYSTEM) >= 3


@pytest.mark.parametrize("path", SYSTEM, ids=lambda path: path.name)
def test_reads_what_readelf_reads(path: Path) -> None:
    assert elf.parse(path.read_bytes()) == readelf(path)


def test_a_program_is_refused() -> None:
    # Position-dependent programs are of another ELF type; a text is no ELF file at all.
    with pytest.raises(elf.ElfError, match="not an ELF file"):
        elf.parse(b"#!/bin/sh\n")


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(4, 1, "64-bit"), (5, 2, "64-bit"), (16, 2, "not a shared object"), (39, 128, "cut short")],
)
def test_other_kinds_are_refused(libraries: tuple[Path, Path], offset: int, value: int, message: str) -> None:
    content = bytearray(libraries[0].read_bytes())
    content[offset] = value
    with pytest.raises(elf.ElfError, match=message):
        elf.parse(bytes(content))


@given(data=st.data())
def test_a_file_cut_short_is_refused(libraries: tuple[Path, Path], data: st.DataObject) -> None:
    # The filler alone is this long, so that any such cut takes away what is loaded.
    length = data.draw(st.integers(0, 70_000))
    with pytest.raises(elf.ElfError):
        elf.parse(libraries[0].read_bytes()[:length])


@given(data=st.data())
def test_damage_is_refused_or_read_but_never_an_accident(libraries: tuple[Path, Path], data: st.DataObject) -> None:
    content = bytearray(libraries[0].read_bytes())
    # Headers and tables lie in the first pages and in the last load segment; hit these more often than the filler.
    places = st.one_of(st.integers(0, 4096), st.integers(len(content) - 8192, len(content) - 1))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(places)] = data.draw(st.integers(0, 255))
    with contextlib.suppress(elf.ElfError):
        elf.parse(bytes(content))
