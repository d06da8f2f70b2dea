"""What the shipped library needs and exports, read from its bytes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection
from tests.everywhere import builds

from isolator_testing import debian
from isolator_testing.tools import skip_or_fail

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
DLSYM_VERSIONS = {"x86_64": ["GLIBC_2.2.5", "GLIBC_2.34"], "aarch64": ["GLIBC_2.17", "GLIBC_2.34"]}
DLMOPEN_VERSIONS = {"x86_64": ["GLIBC_2.3.4", "GLIBC_2.34"], "aarch64": ["GLIBC_2.17", "GLIBC_2.34"]}
RELATIVE = {"x86_64": 8, "aarch64": 1027}
SYMBOLIC = {"x86_64": 1, "aarch64": 257}
TLS_OFFSET = {"x86_64": 18, "aarch64": 1030}
GLOBAL_DATA = {"x86_64": 6, "aarch64": 1025}


@contextmanager
def elf(path: Path) -> Iterator[ELFFile]:
    with path.open("rb") as file:
        yield ELFFile(file)


def symbols(file: ELFFile) -> list[Any]:
    table = file.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    return list(table.iter_symbols())


def defined(path: Path) -> set[str]:
    """Names that an object exports."""
    with elf(path) as file:
        return {s.name for s in symbols(file) if s.entry.st_shndx != "SHN_UNDEF" and s.name}


def undefined(path: Path, binding: str) -> set[str]:
    with elf(path) as file:
        return {
            s.name
            for s in symbols(file)
            if s.entry.st_shndx == "SHN_UNDEF" and s.entry.st_info.bind == binding and s.name
        }


@cache
def wrapped() -> set[str]:
    """The table's names."""
    table = (builds.LIBRARY_FOLDER / "src" / "hooks.def").read_text()
    return set(re.findall(r"^(?:CUDA|NVML)\((\w+),", table, re.MULTILINE))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        metafunc.parametrize("machine", builds.MACHINES)


@pytest.fixture
def library(machine: str) -> Path:
    return builds.release(machine)


def test_exports_are_the_tables_and_what_must_interpose(library: Path, machine: str) -> None:
    with elf(library) as file:
        nodes = {"GLIBC_2.34", *DLSYM_VERSIONS[machine], *DLMOPEN_VERSIONS[machine]}
        exports = [s.name for s in symbols(file) if s.entry.st_shndx not in ("SHN_UNDEF", "SHN_ABS")]
    assert set(exports) - nodes == wrapped() | {"dlsym", "dlmopen"}
    assert exports.count("dlsym") == exports.count("dlmopen") == 2


@pytest.mark.parametrize("name", ["dlsym", "dlmopen"])
def test_interposed_functions_have_the_versions_that_programs_bind_to(library: Path, machine: str, name: str) -> None:
    with elf(library) as file:
        of_symbol = file.get_section_by_name(".gnu.version")
        nodes = {
            d["vd_ndx"]: next(names).name for d, names in file.get_section_by_name(".gnu.version_d").iter_versions()
        }
        found = [
            nodes[of_symbol.get_symbol(index).entry["ndx"] & 0x7FFF]
            for index, symbol in enumerate(symbols(file))
            if symbol.name == name
        ]
    assert sorted(found) == {"dlsym": DLSYM_VERSIONS, "dlmopen": DLMOPEN_VERSIONS}[name][machine]


def test_wrapped_functions_have_no_version_as_in_the_driver(library: Path) -> None:
    with elf(library) as file:
        of_symbol = file.get_section_by_name(".gnu.version")
        versions = {
            of_symbol.get_symbol(index).entry["ndx"]
            for index, symbol in enumerate(symbols(file))
            if symbol.name in wrapped()
        }
    assert versions == {"VER_NDX_GLOBAL"}


def test_needs_libc_and_nothing_else(library: Path) -> None:
    with elf(library) as file:
        tags = list(file.get_section_by_name(".dynamic").iter_tags())
    assert [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"] == ["libc.so.6"]
    assert [tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"] == ["libvgpu.so"]
    assert not [tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH", "DT_TEXTREL")]


def test_has_no_constructor_and_no_destructor(library: Path) -> None:
    with elf(library) as file:
        tags = {tag.entry.d_tag for tag in file.get_section_by_name(".dynamic").iter_tags()}
        names = {section.name for section in file.iter_sections()}
    assert not tags & {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY"}
    assert not names & {".init", ".fini", ".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors"}


def test_each_needed_version_is_in_glibc_2_17(library: Path) -> None:
    with elf(library) as file:
        needed = [
            (need.name, version.name)
            for need, versions in file.get_section_by_name(".gnu.version_r").iter_versions()
            for version in versions
        ]
    assert needed
    assert {file_name for file_name, _ in needed} == {"libc.so.6"}
    for _, version in needed:
        numbers = tuple(int(number) for number in version.removeprefix("GLIBC_").split("."))
        assert numbers <= (2, 17), version


def test_each_needed_symbol_is_in_musl(library: Path, machine: str) -> None:
    try:
        package = debian.packages("musl", suite="bookworm", architecture=DEBIAN[machine])
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    libc = package / "lib" / f"{machine}-linux-musl" / "libc.so"
    if not libc.exists():
        libc = next(path for path in package.rglob("libc.so") if not path.is_symlink())
    assert undefined(library, "STB_GLOBAL") <= defined(libc)


def test_relocations_ask_the_loader_for_nothing_but_libc(library: Path, machine: str) -> None:
    with elf(library) as file:
        names = [symbol.name for symbol in symbols(file)]
        relocations = [
            (entry.entry.r_info_type, names[entry.entry.r_info_sym])
            for section in file.iter_sections()
            if section.header.sh_type == "SHT_RELA"
            for entry in section.iter_relocations()
        ]
    libc = undefined(library, "STB_GLOBAL") | undefined(library, "STB_WEAK")
    others = {
        (kind, name)
        for kind, name in relocations
        if kind not in (RELATIVE[machine], TLS_OFFSET[machine])
        and not (kind == GLOBAL_DATA[machine] and name in libc)
        # An address of libc's that a table of ours holds.
        and not (kind == SYMBOLIC[machine] and name in libc)
    }
    assert not others


def test_thread_local_data_is_initial_exec(library: Path, machine: str) -> None:
    with elf(library) as file:
        kinds = {
            entry.entry.r_info_type
            for section in file.iter_sections()
            if section.header.sh_type == "SHT_RELA"
            for entry in section.iter_relocations()
        }
    dynamic_models = {"x86_64": {16, 17, 36}, "aarch64": {1028, 1029, 1031}}  # DTPMOD64, DTPOFF64, TLSDESC
    assert not kinds & dynamic_models[machine]
    assert "__tls_get_addr" not in undefined(library, "STB_GLOBAL")


def test_stack_is_not_executable_and_data_is_read_only_where_it_can_be(library: Path) -> None:
    with elf(library) as file:
        segments = {segment.header.p_type: segment.header.p_flags for segment in file.iter_segments()}
        both = [s for s in file.iter_segments() if s.header.p_flags & 3 == 3]  # writable and executable
        flags = [
            tag.entry.d_val for tag in file.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_FLAGS"
        ]
    assert segments["PT_GNU_STACK"] & 1 == 0
    assert "PT_GNU_RELRO" in segments
    assert not both
    assert flags[0] & 8  # DF_BIND_NOW


# Bits of "branch targets are marked" and, on x86, "shadow stacks work".
FEATURES = [("x86_64", "GNU_PROPERTY_X86_FEATURE_1_AND", 3), ("aarch64", "GNU_PROPERTY_AARCH64_FEATURE_1_AND", 1)]


@pytest.mark.parametrize(("machine", "name", "mark"), FEATURES)
def test_is_marked_for_shadow_stacks_and_branch_targets(machine: str, name: str, mark: int) -> None:
    """A preloaded object without the mark switches the protection off for the whole process."""
    with elf(builds.release(machine)) as file:
        notes = file.get_section_by_name(".note.gnu.property")
        assert isinstance(notes, NoteSection)
        marks = [p.pr_data for note in notes.iter_notes() for p in note.n_desc if p.pr_type == name]
    assert len(marks) == 1
    assert marks[0] & mark == mark


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    builds.make_release(tmp_path)
    for machine in builds.MACHINES:
        again = tmp_path / "release" / machine / "libvgpu.so"
        assert again.read_bytes() == builds.release(machine).read_bytes()
