"""What `once` leaves on the node, whatever it found there."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from isolator_testing import tools


def test_installs_into_a_directory_that_is_not_there_yet(libsync, keep, right, host_dir: Path, library: Path) -> None:
    libsync("once", *keep)
    assert right(host_dir, library)
    assert sorted(path.name for path in host_dir.iterdir()) == ["ld.so.preload", "libvgpu.so"]
    assert host_dir.stat().st_mode & 0o777 == 0o755


def test_what_is_right_is_not_touched(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep)
    before = [(path.name, path.stat().st_ino, path.stat().st_ctime_ns) for path in sorted(host_dir.iterdir())]
    libsync("once", *keep)
    assert [(path.name, path.stat().st_ino, path.stat().st_ctime_ns) for path in sorted(host_dir.iterdir())] == before


def test_preload_file_names_the_library_where_the_container_has_it(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep, "--container-dir", "/opt/share")
    assert (host_dir / "ld.so.preload").read_text() == "/opt/share/libvgpu.so\n"


def test_the_loader_takes_what_is_installed(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep, "--container-dir", host_dir)
    preload = (host_dir / "ld.so.preload").read_text().strip()
    maps = subprocess.run(
        ["cat", "/proc/self/maps"], env={"LD_PRELOAD": preload}, capture_output=True, text=True, check=True
    )
    assert preload in maps.stdout
    assert maps.stderr == ""


def empty_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def symbolic_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def cut(path: Path) -> None:
    os.truncate(path, 20)


def grown(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"\0")


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def writable_by_all(path: Path) -> None:
    path.chmod(0o666)


def unreadable(path: Path) -> None:
    path.chmod(0)


DAMAGE = [
    Path.unlink,
    empty_directory,
    symbolic_link,
    fifo,
    unix_socket,
    cut,
    grown,
    one_bit,
    writable_by_all,
    unreadable,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
def test_damage_is_put_right(
    libsync, keep, right, host_dir: Path, library: Path, name: str, damage: Callable[[Path], None]
) -> None:
    libsync("once", *keep)
    damage(host_dir / name)
    assert not right(host_dir, library)
    assert name in libsync("check", *keep, status=1).stdout
    libsync("once", *keep)
    assert right(host_dir, library)
    assert libsync("check", *keep).stdout == ""


@pytest.mark.root
@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
def test_a_foreign_owner_is_put_right(libsync, keep, right, host_dir: Path, library: Path, name: str) -> None:
    tools.require_root()
    libsync("once", *keep)
    os.chown(host_dir / name, 1234, 1234)
    assert "belongs to 1234:1234, not 0:0" in libsync("check", *keep, status=1).stdout
    libsync("once", *keep)
    assert right(host_dir, library)


def test_what_lies_in_a_directory_in_a_files_place_is_kept(libsync, keep, right, host_dir: Path, library: Path) -> None:
    (host_dir / "libvgpu.so").mkdir(parents=True)
    (host_dir / "libvgpu.so" / "notes").write_text("mine")
    libsync("once", *keep)
    assert right(host_dir, library)
    (aside,) = host_dir.glob("libvgpu.so.found-*")
    assert (aside / "notes").read_text() == "mine"


def test_mode_is_repaired_on_the_file_that_containers_hold(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep)
    with (host_dir / "libvgpu.so").open("rb") as held:
        (host_dir / "libvgpu.so").chmod(0)
        libsync("once", *keep)
        assert os.fstat(held.fileno()).st_mode & 0o777 == 0o755


def test_what_an_interrupted_attempt_left_is_removed(libsync, keep, right, host_dir: Path, library: Path) -> None:
    host_dir.mkdir()
    (host_dir / ".libvgpu.so.new").write_bytes(b"half")
    (host_dir / ".ld.so.preload.new").mkdir()
    libsync("once", *keep)
    assert right(host_dir, library)
    assert sorted(path.name for path in host_dir.iterdir()) == ["ld.so.preload", "libvgpu.so"]


def test_others_may_not_write_in_the_directory(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep)
    host_dir.chmod(0o777)
    assert "others than its owner may replace the files" in libsync("check", *keep, status=1).stdout
    libsync("once", *keep)
    assert host_dir.stat().st_mode & 0o777 == 0o755


def test_directory_of_regions_is_kept_where_it_is_asked_for(
    libsync, keep, right, host_dir: Path, library: Path
) -> None:
    libsync("once", *keep)
    assert not (host_dir / "containers").exists()
    assert "containers: the directory is missing" in libsync("check", *keep, "--region-dir", status=1).stdout
    libsync("once", *keep, "--region-dir")
    assert (host_dir / "containers").stat().st_mode & 0o7777 == 0o1777
    (host_dir / "containers").chmod(0o755)
    libsync("once", *keep, "--region-dir")
    assert (host_dir / "containers").stat().st_mode & 0o7777 == 0o1777
    (host_dir / "containers").rmdir()
    (host_dir / "containers").write_text("")
    (host_dir / "libvgpu.so").unlink()
    ended = libsync("once", *keep, "--region-dir", status=1)
    assert right(host_dir, library)
    assert "containers: cannot make the directory: Not a directory" in ended.stderr


def test_a_link_in_place_of_the_directory_of_regions_is_not_followed(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep)
    (host_dir / "elsewhere").mkdir(mode=0o700)
    (host_dir / "containers").symlink_to("elsewhere")
    assert "containers: is not a directory" in libsync("check", *keep, "--region-dir", status=1).stdout
    libsync("once", *keep, "--region-dir", status=1)
    assert (host_dir / "elsewhere").stat().st_mode & 0o7777 == 0o700


@pytest.mark.root
def test_the_directory_of_regions_belongs_to_root(libsync, keep, host_dir: Path) -> None:
    tools.require_root()
    libsync("once", *keep, "--region-dir")
    os.chown(host_dir / "containers", 65534, -1)
    assert "containers: belongs to user 65534, not 0" in libsync("check", *keep, "--region-dir", status=1).stdout
    libsync("once", *keep, "--region-dir")
    assert (host_dir / "containers").stat().st_uid == 0


def test_an_upgrade_is_never_seen_half_done(libsync, libraries: tuple[Path, Path], host_dir: Path) -> None:
    """Someone who opens the file again and again finds a whole one each time."""
    owner = f"{os.geteuid()}:{os.getegid()}"
    contents = [library.read_bytes() for library in libraries]
    libsync("once", "--host-dir", host_dir, "--library", libraries[0], "--owner", owner)
    seen: list[bytes] = []
    wrong: list[object] = []
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            try:
                content = (host_dir / "libvgpu.so").read_bytes()
            except OSError as error:
                wrong.append(error)
                continue
            if content not in contents:
                wrong.append(content)
            if not seen or seen[-1] != content:
                seen.append(content)

    looker = threading.Thread(target=look)
    looker.start()
    for round_ in range(200):
        libsync("once", "--host-dir", host_dir, "--library", libraries[(round_ + 1) % 2], "--owner", owner)
    end.set()
    looker.join()
    assert wrong == []
    assert len(seen) > 20


def test_a_running_process_keeps_the_library_it_has_mapped(
    libsync, libraries: tuple[Path, Path], host_dir: Path
) -> None:
    owner = f"{os.geteuid()}:{os.getegid()}"
    libsync("once", "--host-dir", host_dir, "--library", libraries[0], "--owner", owner)
    with (host_dir / "libvgpu.so").open("rb") as held:
        libsync("once", "--host-dir", host_dir, "--library", libraries[1], "--owner", owner)
        assert held.read() == libraries[0].read_bytes()
    assert (host_dir / "libvgpu.so").read_bytes() == libraries[1].read_bytes()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host-dir", "node"], ["--host-dir", "'node'", "absolute path"]),
        (["--container-dir", "/usr/local/v gpu"], ["--container-dir", "'/usr/local/v gpu'", "white space"]),
        (["--container-dir", "/a:b"], ["--container-dir", "colons"]),
        (["--owner", "root"], ["--owner", "'root'", "UID:GID"]),
        (["--selinux-type", "a:b"], ["--selinux-type", "'a:b'", "container_file_t"]),
        (["--library", "/nowhere/libvgpu.so"], ["--library", "'/nowhere/libvgpu.so'", "No such file"]),
        (["--library", "/etc/passwd"], ["--library", "'/etc/passwd'", "not an ELF file"]),
    ],
)
def test_wrong_settings_end_with_2_and_one_line(
    libsync, keep, error_line, host_dir: Path, flags: list[str], words: list[str]
) -> None:
    line = error_line(libsync("once", *keep, *flags, status=2))
    for word in words:
        assert word in line
    assert not host_dir.exists()


def test_a_library_for_another_machine_is_refused(libsync, keep, error_line, tmp_path: Path, library: Path) -> None:
    other = tmp_path / "libvgpu.so"
    content = bytearray(library.read_bytes())
    content[18:20] = (0xF3, 0)  # e_machine: RISC-V
    other.write_bytes(content)
    line = error_line(libsync("once", *keep, "--library", other, status=2))
    assert "it is for machine 243; accepted is a libvgpu.so for" in line


def test_without_a_library_the_images_own_is_looked_for(libsync, error_line, host_dir: Path) -> None:
    line = error_line(libsync("once", "--host-dir", host_dir, status=2))
    assert f"/opt/kai-resource-isolator/{os.uname().machine}/libvgpu.so" in line


def test_a_file_in_the_directorys_place_is_one_sentence(libsync, keep, error_line, host_dir: Path) -> None:
    host_dir.write_text("")
    line = error_line(libsync("once", *keep, status=1))
    assert line.startswith(f"{host_dir}: cannot make the directory: File exists")


@pytest.mark.root
def test_a_file_that_may_not_be_changed_is_one_sentence(libsync, keep, error_line, host_dir: Path) -> None:
    tools.require_root()
    chattr = tools.require("chattr", package="e2fsprogs")
    libsync("once", *keep)
    (host_dir / "libvgpu.so").write_bytes(b"")
    if subprocess.run([chattr, "+i", host_dir / "libvgpu.so"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the file system of the temporary directory knows no immutable files")
    try:
        line = error_line(libsync("once", *keep, status=1))
    finally:
        subprocess.run([chattr, "-i", host_dir / "libvgpu.so"], check=True)
    assert line == f"{host_dir}/libvgpu.so: cannot put the new file in place: Operation not permitted"
    shutil.rmtree(host_dir)
