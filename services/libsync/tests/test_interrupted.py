"""Killed, failed or without power at every system call: the files are the old or the new ones, whole."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isolator_testing import tools

pytestmark = [pytest.mark.root, pytest.mark.slow]

PRELOAD = b"/usr/local/vgpu/libvgpu.so\n"
NAMES = ("libvgpu.so", "ld.so.preload")
MODES = {"libvgpu.so": 0o755, "ld.so.preload": 0o644}

CAN_FAIL = (
    "openat", "read", "write", "fsync", "fchmod", "fchmodat", "rename", "renameat", "renameat2", "unlinkat", "mkdir",
    "mkdirat", "newfstatat", "fstatfs", "flock", "fadvise64", "close",
)  # fmt: skip


@dataclass
class Traced:
    """Runs commands under strace."""

    worker: "subprocess.Popen[str]"
    strace: Path
    log: Path
    errors: Path

    def run(self, command: str, *tampering: str) -> int:
        """Exit status of one command, negative for a signal."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(command + "\n")
        self.worker.stdin.flush()
        child = int(self.worker.stdout.readline())
        options = ["-qq", "-o", self.log, "-p", str(child), *tampering]
        tracer = subprocess.Popen([self.strace, *options], stderr=subprocess.PIPE, text=True)
        while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
            if tracer.poll() is not None:
                os.kill(child, signal.SIGKILL)
                _, message = tracer.communicate()
                tools.skip_or_fail(f"strace cannot trace here: {message}")
            time.sleep(0.001)
        os.kill(child, signal.SIGCONT)
        status = int(self.worker.stdout.readline())
        tracer.communicate()
        return status

    def calls(self, command: str) -> Counter[str]:
        """How often one undisturbed run of the command makes each system call."""
        assert self.run(command) == 0
        return Counter(re.findall(r"^(\w+)\(", self.log.read_text(), re.MULTILINE))

    def messages(self) -> str:
        """What the commands printed on standard error since the last time."""
        text = self.errors.read_text()
        os.truncate(self.errors, 0)
        return text


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    tools.require_root()
    strace = tools.require("strace", package="strace")
    errors = tmp_path / "errors"
    with errors.open("a") as stream:
        worker = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("interrupted_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
    with worker:
        yield Traced(worker, strace, tmp_path / "trace", errors)
        worker.kill()


@dataclass
class Disk:
    """An ext4 file system in a file, and what it would hold had the power failed now."""

    image: Path
    mounted: Path
    crashed: Path
    host_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        self.host_dir = self.mounted / "node"

    def after_power_failure(self) -> Path:
        """The host directory as it is found after a restart; only one at a time, `forget` it after."""
        copy = self.image.with_suffix(".crashed")
        subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
        subprocess.run(["mount", "-o", "loop", copy, self.crashed], check=True)
        return self.crashed / "node"

    def forget(self) -> None:
        subprocess.run(["umount", self.crashed], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    tools.require_root()
    mkfs = tools.require("mkfs.ext4", package="e2fsprogs")
    disk = Disk(tmp_path / "disk.img", tmp_path / "disk", tmp_path / "crashed")
    disk.mounted.mkdir()
    disk.crashed.mkdir()
    with disk.image.open("wb") as stream:
        stream.truncate(8 << 20)
    subprocess.run([mkfs, "-q", disk.image], check=True)
    made = subprocess.run(
        ["mount", "-o", "loop", disk.image, disk.mounted], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        tools.skip_or_fail(f"cannot mount here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk.mounted], check=True)


def empty(disk: Disk, _: Path) -> None:
    subprocess.run(["rm", "-rf", disk.host_dir], check=True)


def old_version(disk: Disk, old: Path) -> None:
    empty(disk, old)
    disk.host_dir.mkdir()
    for name, content in zip(NAMES, (old.read_bytes(), PRELOAD), strict=True):
        (disk.host_dir / name).write_bytes(content)
        (disk.host_dir / name).chmod(MODES[name])


def directories(disk: Disk, old: Path) -> None:
    empty(disk, old)
    for name in NAMES:
        (disk.host_dir / name).mkdir(parents=True)


def closed_to_others(disk: Disk, old: Path) -> None:
    old_version(disk, old)
    (disk.host_dir / "libvgpu.so").chmod(0o600)
    (disk.host_dir / "ld.so.preload").chmod(0o666)


BEFORE = [empty, old_version, directories, closed_to_others]


def state(host_dir: Path) -> tuple[object, object]:
    """What stands in the place of the library and of the preload file: bytes, or what it is instead."""
    found: list[object] = []
    for path in (host_dir / name for name in NAMES):
        if path.is_dir():
            found.append("directory")
        else:
            found.append(path.read_bytes() if path.exists() else "missing")
    return found[0], found[1]


def assert_whole(host_dir: Path, before: tuple[object, object], new: Path) -> None:
    library, preload = state(host_dir)
    assert library in (before[0], new.read_bytes())
    assert preload in (before[1], PRELOAD)
    if before[1] != PRELOAD and preload == PRELOAD:
        assert library == new.read_bytes(), "the preload file came before its library"
    for name in NAMES:
        path = host_dir / name
        if path.is_file() and before == ("missing", "missing"):
            assert path.stat().st_mode & 0o777 == MODES[name]


@pytest.mark.parametrize("prepare", BEFORE, ids=lambda prepare: prepare.__name__)
def test_killed_or_without_power_at_every_system_call(
    traced: Traced, disk: Disk, right, libraries: tuple[Path, Path], prepare: Callable[[Disk, Path], None]
) -> None:
    old, new = libraries
    command = f"once --host-dir {disk.host_dir} --library {new} --log-level error"
    prepare(disk, old)
    before = state(disk.host_dir)
    calls = traced.calls(command)
    assert calls["fsync"] >= 2
    killed = 0
    for call, count in calls.items():
        for number in range(1, count + 1):
            prepare(disk, old)
            os.sync()
            status = traced.run(command, "-e", f"inject={call}:signal=KILL:when={number}")
            assert status == -signal.SIGKILL, (call, number)
            killed += 1
            assert_whole(disk.host_dir, before, new)
            found = disk.after_power_failure()
            try:
                assert_whole(found, before, new)
            finally:
                disk.forget()
            assert traced.run(command) == 0
            assert right(disk.host_dir, new)
            assert sorted(path.name for path in disk.host_dir.iterdir()) == sorted(NAMES)
    assert killed == calls.total() >= 100
    assert traced.messages() == ""


@pytest.mark.parametrize("prepare", BEFORE, ids=lambda prepare: prepare.__name__)
def test_what_was_reported_right_is_there_after_a_power_failure(
    traced: Traced, disk: Disk, right, libraries: tuple[Path, Path], prepare: Callable[[Disk, Path], None]
) -> None:
    prepare(disk, libraries[0])
    os.sync()
    assert traced.run(f"once --host-dir {disk.host_dir} --library {libraries[1]}") == 0
    found = disk.after_power_failure()
    try:
        assert right(found, libraries[1])
    finally:
        disk.forget()


def test_a_file_system_that_cannot_swap_two_names(
    traced: Traced, disk: Disk, right, libraries: tuple[Path, Path]
) -> None:
    directories(disk, libraries[0])
    (disk.host_dir / "libvgpu.so" / "notes").write_text("mine")
    command = f"once --host-dir {disk.host_dir} --library {libraries[1]} --log-level error"
    assert traced.run(command, "-e", "inject=renameat2:error=EINVAL") == 0
    assert right(disk.host_dir, libraries[1])
    (kept,) = disk.host_dir.glob("libvgpu.so.found-*")
    assert (kept / "notes").read_text() == "mine"


def test_files_that_were_never_synced_are_before_they_are_reported_right(
    traced: Traced, disk: Disk, right, libraries: tuple[Path, Path]
) -> None:
    """As an earlier attempt leaves them that died between its rename and its last sync."""
    disk.host_dir.mkdir()
    os.sync()
    old_version(disk, libraries[1])
    assert right(disk.host_dir, libraries[1])
    assert traced.run(f"once --host-dir {disk.host_dir} --library {libraries[1]}") == 0
    found = disk.after_power_failure()
    try:
        assert right(found, libraries[1])
    finally:
        disk.forget()


@pytest.mark.parametrize(("number", "name"), [(1, "libvgpu.so"), (2, "ld.so.preload")])
def test_a_write_that_is_lost_is_found_out(
    traced: Traced, disk: Disk, libraries: tuple[Path, Path], number: int, name: str
) -> None:
    """The disk says that it has written, and has not."""
    old, new = libraries
    old_version(disk, old)
    (disk.host_dir / "ld.so.preload").write_bytes(b"old")
    before = state(disk.host_dir)
    length = (new.stat().st_size, len(PRELOAD))[number - 1]
    command = f"once --host-dir {disk.host_dir} --library {new} --log-level error"
    assert traced.run(command, "-e", f"inject=write:retval={length}:when={number}") == 1
    message = traced.messages()
    assert message.startswith(f"isolator-libsync: {disk.host_dir}/{name}: the new file is 0 bytes with digest ")
    assert message.count("\n") == 1
    assert_whole(disk.host_dir, before, new)
    assert (disk.host_dir / "ld.so.preload").read_bytes() == b"old"


@pytest.mark.parametrize("prepare", BEFORE, ids=lambda prepare: prepare.__name__)
def test_an_error_of_any_system_call_is_one_sentence(
    traced: Traced, disk: Disk, right, libraries: tuple[Path, Path], prepare: Callable[[Disk, Path], None]
) -> None:
    old, new = libraries
    command = f"once --host-dir {disk.host_dir} --library {new} --log-level error"
    prepare(disk, old)
    before = state(disk.host_dir)
    calls = traced.calls(command)
    refused = Counter[str]()
    for call in sorted(set(CAN_FAIL) & set(calls)):
        for number in range(1, calls[call] + 1):
            prepare(disk, old)
            status = traced.run(command, "-e", f"inject={call}:error=EIO:when={number}")
            messages = traced.messages()
            assert "Traceback" not in messages, (call, number, messages)
            assert status in (0, 1, 2), (call, number, messages)
            assert messages.count("\n") == (status != 0), (call, number, messages)
            refused[call] += status != 0
            assert_whole(disk.host_dir, before, new)
            assert traced.run(command) == 0
            assert right(disk.host_dir, new)
    if prepare is not closed_to_others:  # There a file that cannot be synced after a change of mode is made anew.
        assert refused["fsync"] == calls["fsync"], "an error on sync went by unsaid"
