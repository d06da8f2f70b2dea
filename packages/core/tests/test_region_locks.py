"""Who is attached is what the kernel says, not what a slot says."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from isolator_core.region import Kind, RegionError, open_beneath, read_region
from isolator_core.region.locks import held_slots
from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write
from isolator_testing.tools import require, require_root

IMAGE = RegionImage([Card("GPU-1", 1 << 30)], {slot: Slot(100 + slot, [Use(buffer=1 << slot)]) for slot in range(12)})


def slots(directory: Path) -> dict[int, int]:
    with open_beneath(directory) as descriptor:
        return {process.slot: process.host_pid for process in read_region(descriptor).processes}


def test_dead_processes_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, IMAGE.v1())
    with hold(tmp_path / "usage.lock", [0, 3, 4, 11]) as owners:
        assert slots(tmp_path) == owners
        os.kill(owners[3], signal.SIGKILL)
        os.waitid(os.P_PID, owners[3], os.WEXITED | os.WNOWAIT)
        del owners[3]
        assert slots(tmp_path) == owners
        owners[3] = os.fork() or os._exit(0)
    assert slots(tmp_path) == {}


def test_one_process_that_holds_every_byte_counts_once_a_slot(tmp_path: Path) -> None:
    lock = tmp_path / "usage.lock"
    lock.touch()
    program = "import fcntl, sys\nfile = open(sys.argv[1], 'r+')\nfcntl.lockf(file, 2)\nprint(flush=True)\ninput()"
    with lock.open("rb") as readable:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout
        child.stdout.readline()
        assert held_slots(readable.fileno(), 1024) == dict.fromkeys(range(1024), child.pid)
        child.communicate(b"\n")


def test_without_a_lock_file_every_slot_in_use_counts(tmp_path: Path) -> None:
    write(tmp_path, IMAGE.v1())
    (tmp_path / "usage.lock").unlink()
    with open_beneath(tmp_path) as descriptor:
        region = read_region(descriptor)
    assert not region.liveness
    assert len(region.processes) == 12


def test_a_flood_of_locks_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    lock = tmp_path / "usage.lock"
    lock.touch()
    with lock.open("r+b") as file, hold(lock, [1]):
        with pytest.raises(RegionError) as caught:
            held_slots(file.fileno(), 1024, budget_seconds=0.0)
        assert caught.value.kind is Kind.LOCKS


@pytest.mark.root
def test_holder_in_another_pid_namespace_is_seen_with_its_pid_here(tmp_path: Path) -> None:
    require_root()
    unshare = require("unshare", package="util-linux")
    write(tmp_path, IMAGE.v1())
    program = (
        "import fcntl, os, sys\n"
        f"f = open({str(tmp_path / 'usage.lock')!r}, 'r+')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX, 1, 7)\n"
        "print(os.getpid(), flush=True)\n"
        "input()\n"
    )
    child = subprocess.Popen(
        [unshare, "--pid", "--fork", sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    assert child.stdout.readline() == b"1\n"
    found = slots(tmp_path)
    assert list(found) == [7]
    assert Path(f"/proc/{found[7]}/cmdline").read_bytes().startswith(sys.executable.encode())
    child.communicate(b"\n")


def test_struct_flock_is_the_kernels() -> None:
    """`struct flock` of x86-64 and AArch64 Linux is 32 bytes; F_GETLK on an unlocked file leaves it as asked but for
    the type."""
    with Path(__file__).open("rb") as file:
        asked = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 5, 3, 0)
        answer = fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked)
        assert struct.unpack("@hhqqi4x", answer) == (fcntl.F_UNLCK, os.SEEK_SET, 5, 3, 0)
