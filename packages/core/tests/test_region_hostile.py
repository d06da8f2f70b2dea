"""No file that a tenant can make leads the reader elsewhere, makes it wait, or gives it a number that is not sane."""

import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from isolator_core.region import Kind, RegionError, open_beneath, read_region
from isolator_testing.regions import Card, RegionImage, Slot, Use, write
from isolator_testing.tools import require_root

IMAGE = RegionImage([Card("GPU-1", 1 << 30)], {0: Slot(7, [Use(1, 2, 3)])})


def kind(directory: Path) -> Kind | None:
    try:
        with open_beneath(directory.parent, directory.name) as descriptor:
            read_region(descriptor)
    except RegionError as error:
        return error.kind
    return None


def change(*changes: tuple[int, str, int]) -> bytes:
    data = RegionImage(IMAGE.cards, IMAGE.slots, extended=True).v1()
    for offset, form, value in changes:
        struct.pack_into(form, data, offset, value)
    return bytes(data)


EXTENSION = 2_011_136


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", Kind.NOT_READY),
        (b"\0" * 11, Kind.NOT_READY),
        (bytes(3_203_072), Kind.NOT_READY),
        (b"PK\3\4" + bytes(3_203_068), Kind.MAGIC),
        (change()[:4096], Kind.SIZE),
        (change()[:1_197_895], Kind.SIZE),
        (change()[:EXTENSION], None),
        (change()[:-1], Kind.SIZE),
        (change((4, "<i", 2)), Kind.VERSION),
        (change((4, "<i", -1)), Kind.VERSION),
        (change((8, "<i", 3)), Kind.VERSION),
        (change((56, "<Q", 17)), Kind.COUNT),
        (change((56, "<Q", 1 << 63)), Kind.COUNT),
        (change((2_008_896, "<i", 1025)), Kind.COUNT),
        (change((2_008_896, "<i", -1)), Kind.COUNT),
        (change((64, "<B", 0xFF)), Kind.STRING),
        (change((64, "<B", ord('"'))), Kind.STRING),
        (change((64, "<B", ord("\n"))), Kind.STRING),
        (change(*((64 + at, "<B", ord("A")) for at in range(96))), Kind.STRING),
        (change((EXTENSION, "<B", 0)), None),
        (change((EXTENSION + 8, "<I", 2)), Kind.VERSION),
        (change((EXTENSION + 16, "<Q", 1)), Kind.SIZE),
        (change((EXTENSION + 24, "<I", 1025)), Kind.COUNT),
        (change((EXTENSION + 28, "<I", 17)), Kind.COUNT),
    ],
)
def test_content(tmp_path: Path, data: bytes, expected: Kind | None) -> None:
    write(tmp_path / "c", data)
    assert kind(tmp_path / "c") is expected


@pytest.mark.parametrize(
    "change_slot",
    [
        (1856 + 8 + 32, "<Q", 5),  # total below its parts
        (1856 + 8 + 32, "<Q", (1 << 64) - 1),
        (1856 + 8 + 0, "<Q", (1 << 64) - 1),
    ],
)
def test_numbers_of_a_slot_that_cannot_be(tmp_path: Path, change_slot: tuple[int, str, int]) -> None:
    write(tmp_path / "c", change(change_slot))
    (tmp_path / "c" / "usage.lock").unlink()
    assert kind(tmp_path / "c") is Kind.VALUE


def test_odd_seqlock_of_a_killed_process_does_not_hold_up_the_reader(tmp_path: Path) -> None:
    write(tmp_path / "c", change((1856 + 1936, "<Q", 1)))
    (tmp_path / "c" / "usage.lock").unlink()
    assert kind(tmp_path / "c") is None


def in_place_of_file(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def place(directory: Path) -> None:
        directory.mkdir()
        make(directory / "usage.cache")

    return place


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(path.parent)
        sock.bind(path.name)
        os.chdir(here)


def make_hard_link(path: Path) -> None:
    write(path.parent.parent / "victim", IMAGE.v1())
    path.hardlink_to(path.parent.parent / "victim" / "usage.cache")


def make_link(path: Path) -> None:
    write(path.parent.parent / "victim", IMAGE.v1())
    path.symlink_to("../victim/usage.cache")


def link_directory(path: Path) -> None:
    write(path.parent / "victim", IMAGE.v1())
    path.symlink_to("victim")


def make_sparse(path: Path) -> None:
    path.write_bytes(change())
    os.truncate(path, 1 << 42)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda _: None, Kind.ABSENT),
        (lambda path: path.mkdir(), Kind.ABSENT),
        (lambda path: path.touch(), Kind.NOT_DIRECTORY),
        (link_directory, Kind.NOT_DIRECTORY),
        (in_place_of_file(make_link), Kind.LINK),
        (in_place_of_file(lambda path: path.symlink_to(path)), Kind.LINK),
        (in_place_of_file(make_hard_link), Kind.LINK),
        (in_place_of_file(lambda path: path.mkdir()), Kind.NOT_REGULAR),
        (in_place_of_file(lambda path: os.mkfifo(path)), Kind.NOT_REGULAR),
        (in_place_of_file(make_socket), Kind.NOT_REGULAR),
        (in_place_of_file(make_sparse), Kind.SIZE),
    ],
)
def test_what_stands_in_the_files_place(tmp_path: Path, make: Callable[[Path], None], expected: Kind) -> None:
    make(tmp_path / "c")
    assert kind(tmp_path / "c") is expected


def test_a_device_is_never_opened(tmp_path: Path) -> None:
    require_root()
    (tmp_path / "c").mkdir()
    os.mknod(tmp_path / "c" / "usage.cache", 0o666 | stat.S_IFCHR, os.makedev(10, 130))
    assert kind(tmp_path / "c") is Kind.NOT_REGULAR


def test_the_name_under_which_a_region_is_made_is_no_foreign_link(tmp_path: Path) -> None:
    path = write(tmp_path / "c", IMAGE.v1())
    (tmp_path / "c" / "usage.new").hardlink_to(path)
    assert kind(tmp_path / "c") is None
    (tmp_path / "c" / "third").hardlink_to(path)
    assert kind(tmp_path / "c") is Kind.LINK


@pytest.mark.parametrize(
    "make", [lambda path: os.mkfifo(path), lambda path: path.symlink_to("usage.cache"), lambda path: path.mkdir()]
)
def test_what_stands_in_the_lock_files_place(tmp_path: Path, make: Callable[[Path], None]) -> None:
    write(tmp_path / "c", IMAGE.v1())
    (tmp_path / "c" / "usage.lock").unlink()
    make(tmp_path / "c" / "usage.lock")
    assert kind(tmp_path / "c") in (Kind.NOT_REGULAR, Kind.LINK)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_names_that_are_no_single_component(tmp_path: Path, name: str) -> None:
    with pytest.raises(RegionError), open_beneath(tmp_path, name):
        pass


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    write(tmp_path / "good", IMAGE.v1())
    write(tmp_path / "bad", change((56, "<Q", 17)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("good", "bad", "absent"):
        kind(tmp_path / name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
