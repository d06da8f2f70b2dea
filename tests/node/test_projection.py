"""A volume's files are replaced all at once, as the kubelet does it."""

import contextlib
import itertools
import os
import threading
from pathlib import Path

import pytest
from tests.node.projection import File, read, write


def files(**contents: str) -> dict[str, File]:
    return {name: File(content.encode(), 0o644) for name, content in contents.items()}


def test_files_are_links_through_data_to_a_generation(tmp_path: Path) -> None:
    assert write(tmp_path, {"request": File(b"memory=4096m\n", 0o444), "deep/er": File(b"1", 0o600)})
    assert str((tmp_path / "request").readlink()) == "..data/request"
    assert str((tmp_path / "deep").readlink()) == "..data/deep"
    generation = str((tmp_path / "..data").readlink())
    assert generation.startswith("..20")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["..data", generation, "deep", "request"])
    assert (tmp_path / "request").read_bytes() == b"memory=4096m\n"
    assert (tmp_path / "request").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "deep/er").stat().st_mode & 0o777 == 0o600


def test_same_files_make_no_new_generation(tmp_path: Path) -> None:
    write(tmp_path, files(request="a"))
    before = str((tmp_path / "..data").readlink())
    assert not write(tmp_path, files(request="a"))
    assert str((tmp_path / "..data").readlink()) == before


@pytest.mark.parametrize(
    "after",
    [files(request="b"), files(other="a"), files(request="a", other="b"), {}, {"request": File(b"a", 0o600)}],
    ids=["content", "renamed", "added", "removed", "mode"],
)
def test_new_files_replace_the_old(tmp_path: Path, after: dict[str, File]) -> None:
    write(tmp_path, files(request="a"))
    assert write(tmp_path, after)
    assert read(tmp_path) == after
    generation = str((tmp_path / "..data").readlink())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["..data", generation, *after])


def test_a_reader_of_one_generation_sees_files_that_belong_together(tmp_path: Path) -> None:
    write(tmp_path, files(a="0", b="0"))
    stop = threading.Event()
    torn: list[tuple[bytes, bytes]] = []
    reads = 0

    def look() -> None:
        nonlocal reads
        while not stop.is_set():
            # The generation may be removed between reading the link and opening what it names, and after that.
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
                data = os.open(tmp_path / "..data", os.O_RDONLY | os.O_DIRECTORY)
                opened.callback(os.close, data)
                one, other = (_read_at(data, name) for name in ("a", "b"))
                if one != other:
                    torn.append((one, other))
                reads += 1

    reader = threading.Thread(target=look)
    reader.start()
    for number in itertools.count():
        write(tmp_path, files(a=str(number), b=str(number)))
        if number >= 300 and reads >= 300:
            break
    stop.set()
    reader.join()
    assert torn == []


def _read_at(directory: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)
