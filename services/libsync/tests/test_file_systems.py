"""Real file systems that are full, read-only, mounted noexec or on a disk that fails."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isolator_testing import tools

pytestmark = pytest.mark.root

MIB = 1 << 20


def mount(source: object, target: Path, *options: str) -> None:
    command = ["mount", *options, source, target]
    made = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if made.returncode != 0:
        tools.skip_or_fail(f"cannot mount here: {made.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make an ext4 file system in a file and mount it; `options` are of mkfs, `folder` is where the file lies."""
    tools.require_root()
    mkfs = tools.require("mkfs.ext4", package="e2fsprogs")
    mounted: list[Path] = []

    def make(*options: str, mib: int = 8, folder: Path = tmp_path) -> Path:
        image, target = folder / "disk.img", tmp_path / "disk"
        with image.open("wb") as stream:
            stream.truncate(mib * MIB)
        subprocess.run([mkfs, "-q", "-m", "0", *options, image], check=True)
        target.mkdir()
        mount(image, target, "-o", "loop")
        mounted.append(target)
        return target

    yield make
    for target in mounted:
        subprocess.run(["umount", target], check=True)


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB."""
    tools.require_root()
    target = tmp_path / "memory"
    target.mkdir()
    mount("tmpfs", target, "-t", "tmpfs", "-o", "size=4m")
    yield target
    subprocess.run(["umount", "--lazy", target], check=True)


def fill(folder: Path) -> Path:
    """Write a file until there is no space left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (MIB, 4096, 1):
            try:
                while stream.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return filler


def use_up_inodes(folder: Path) -> Path:
    """Make files until no more can be made; they are in one directory, which is returned."""
    many = folder / "many"
    many.mkdir()
    for number in range(10_000):
        try:
            (many / str(number)).touch()
        except OSError:
            return many
    raise AssertionError("there are too many inodes")


def keep_in(host_dir: Path, library: Path) -> tuple[object, ...]:
    return ("--host-dir", host_dir, "--library", library)


def test_a_full_disk_is_one_sentence_and_nothing_is_half_there(
    libsync, error_line, right, disk, libraries: tuple[Path, Path]
) -> None:
    host_dir = disk() / "node"
    libsync("once", *keep_in(host_dir, libraries[0]))
    filler = fill(host_dir.parent)
    line = error_line(libsync("once", *keep_in(host_dir, libraries[1]), status=1))
    assert line == (
        f"{host_dir}/libvgpu.so: cannot write: No space left on device; free space on the file system of {host_dir}"
    )
    assert right(host_dir, libraries[0])
    assert sorted(path.name for path in host_dir.iterdir()) == ["ld.so.preload", "libvgpu.so"]
    filler.unlink()
    libsync("once", *keep_in(host_dir, libraries[1]))
    assert right(host_dir, libraries[1])


def test_a_full_disk_is_right_if_the_files_are(libsync, disk, library: Path) -> None:
    host_dir = disk() / "node"
    libsync("once", *keep_in(host_dir, library))
    fill(host_dir.parent)
    libsync("once", *keep_in(host_dir, library))
    assert libsync("check", *keep_in(host_dir, library)).stdout == ""


def test_a_disk_without_inodes_is_one_sentence(libsync, error_line, disk, library: Path) -> None:
    host_dir = disk("-N", "32") / "node"
    host_dir.mkdir()
    use_up_inodes(host_dir.parent)
    line = error_line(libsync("once", *keep_in(host_dir, library), status=1))
    assert line.startswith(f"{host_dir}/libvgpu.so: cannot write: No space left on device")
    assert list(host_dir.iterdir()) == []


def test_the_preload_file_does_not_come_before_the_library(libsync, disk, library: Path) -> None:
    """There is room for the small file only, and it must not name a library that is not there."""
    host_dir = disk() / "node"
    host_dir.mkdir()
    with fill(host_dir.parent).open("r+b") as filler:
        filler.truncate(os.fstat(filler.fileno()).st_size - 8192)
    libsync("once", *keep_in(host_dir, library), status=1)
    assert list(host_dir.iterdir()) == []


def test_a_read_only_disk_is_one_sentence(libsync, error_line, disk, library: Path) -> None:
    mounted = disk()
    mount("none", mounted, "-o", "remount,ro")
    line = error_line(libsync("once", *keep_in(mounted / "node", library), status=1))
    assert line == (
        f"{mounted}/node: cannot make the directory: Read-only file system;"
        " choose with --host-dir a directory that is writable and not mounted noexec"
    )


def test_a_read_only_disk_is_right_if_the_files_are(libsync, error_line, right, disk, libraries) -> None:
    host_dir = disk() / "node"
    libsync("once", *keep_in(host_dir, libraries[0]))
    mount("none", host_dir.parent, "-o", "remount,ro")
    libsync("once", *keep_in(host_dir, libraries[0]))
    assert libsync("check", *keep_in(host_dir, libraries[0])).stdout == ""
    line = error_line(libsync("once", *keep_in(host_dir, libraries[1]), status=1))
    assert line.startswith(f"{host_dir}/libvgpu.so: cannot write: Read-only file system; choose with --host-dir")
    assert right(host_dir, libraries[0])


def test_nothing_is_installed_where_programs_cannot_load_it(libsync, error_line, disk, library: Path) -> None:
    mounted = disk()
    mount("none", mounted, "-o", "remount,noexec")
    line = error_line(libsync("once", *keep_in(mounted / "node", library), status=1))
    assert line == (
        f"{mounted}/node: the file system is mounted noexec, so that no program can load the library from it;"
        " choose with --host-dir a directory that is writable and not mounted noexec"
    )
    assert list((mounted / "node").iterdir()) == []


def test_noexec_of_a_bind_mount_alone_is_seen(libsync, error_line, tmp_path: Path, library: Path) -> None:
    """As in a pod: the mount in the container has the flags of the mount that it was made from."""
    tools.require_root()
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    mount(source, target, "--bind")
    try:
        mount("none", target, "-o", "remount,bind,noexec")
        assert "is mounted noexec" in error_line(libsync("once", *keep_in(target, library), status=1))
    finally:
        subprocess.run(["umount", target], check=True)


def test_files_stay_when_the_disk_becomes_noexec(libsync, right, disk, library: Path) -> None:
    host_dir = disk() / "node"
    libsync("once", *keep_in(host_dir, library))
    mount("none", host_dir.parent, "-o", "remount,noexec")
    lines = libsync("check", *keep_in(host_dir, library), status=1).stdout.splitlines()
    assert len(lines) == 2
    assert "is mounted noexec" in lines[0]
    assert lines[1] == f"{host_dir}/libvgpu.so: cannot be mapped executable: Operation not permitted"
    libsync("once", *keep_in(host_dir, library), status=1)
    assert right(host_dir, library)


def test_a_disk_that_fails_to_sync_changes_nothing(
    libsync, error_line, right, disk, small_memory: Path, libraries: tuple[Path, Path]
) -> None:
    """The disk's own storage is full, so that what was written is lost when it is synced."""
    host_dir = disk(mib=64, folder=small_memory) / "node"
    libsync("once", *keep_in(host_dir, libraries[0]))
    os.sync()
    fill(small_memory)
    line = error_line(libsync("once", *keep_in(host_dir, libraries[1]), status=1))
    assert line.startswith(f"{host_dir}/libvgpu.so: cannot sync: ")
    assert right(host_dir, libraries[0])


def test_the_service_is_not_ready_on_a_full_disk_and_ready_once_there_is_room(
    disk, start, until, right, library: Path
) -> None:
    host_dir = disk() / "node"
    host_dir.mkdir()
    filler = fill(host_dir.parent)
    service = start(*keep_in(host_dir, library))
    assert service.read_until("not_right")["finding"] == "full"
    until(lambda: "No space left on device" in service.get("/readyz")[1], "said by the probe")
    assert service.get("/readyz")[0] == 503
    assert service.metric("isolator_libsync_ready") == 0
    assert service.metric('isolator_libsync_findings{finding="full"}') == 1
    filler.unlink()
    until(lambda: service.get("/readyz")[0] == 200, "ready once there is room")
    assert right(host_dir, library)
    assert service.stop() == 0


def test_the_service_is_not_ready_while_the_disk_is_noexec(disk, start, until, right, library: Path) -> None:
    mounted = disk()
    mount("none", mounted, "-o", "remount,noexec")
    service = start(*keep_in(mounted / "node", library))
    assert service.read_until("not_right")["finding"] == "noexec"
    assert service.get("/readyz")[0] == 503
    mount("none", mounted, "-o", "remount,exec")
    until(lambda: service.get("/readyz")[0] == 200, "ready once programs can load the library")
    assert right(mounted / "node", library)
    mount("none", mounted, "-o", "remount,noexec")
    until(lambda: service.get("/readyz")[0] == 503, "not ready once they no longer can")
    assert service.stop() == 0
