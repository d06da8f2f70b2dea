"""Root without a single capability is enough, and one directory is all that is written."""

import os
import subprocess
from pathlib import Path

import pytest

from isolator_testing import tools

pytestmark = pytest.mark.root

NAMES = ("libvgpu.so", "ld.so.preload")


@pytest.fixture
def without_capabilities() -> tuple[object, ...]:
    tools.require_root()
    setpriv = tools.require("setpriv", package="util-linux")
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def test_no_capability_is_left(without_capabilities: tuple[object, ...]) -> None:
    command = [*without_capabilities, "grep", "Cap", "/proc/self/status"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in text.splitlines()} == {"0" * 16}


@pytest.mark.parametrize("damage", ["missing", "content", "mode", "owner", "directory", "nothing"])
def test_everything_is_put_right_without_capabilities(
    libsync_process, without_capabilities, keep, right, host_dir: Path, library: Path, damage: str
) -> None:
    libsync_process("once", *keep, before=without_capabilities)
    for path in (host_dir / name for name in NAMES):
        match damage:
            case "missing":
                path.unlink()
            case "content":
                path.write_bytes(b"")
            case "mode":
                path.chmod(0)
            case "owner":
                os.chown(path, 1234, 1234)
                path.chmod(0o600)
            case "directory":
                path.unlink()
                path.mkdir()
    libsync_process("once", *keep, before=without_capabilities)
    assert right(host_dir, library)


def test_mode_is_repaired_on_the_file_that_containers_hold(
    libsync_process, without_capabilities, keep, host_dir: Path
) -> None:
    libsync_process("once", *keep, before=without_capabilities)
    with (host_dir / "libvgpu.so").open("rb") as held:
        (host_dir / "libvgpu.so").chmod(0)
        libsync_process("once", *keep, before=without_capabilities)
        assert os.fstat(held.fileno()).st_mode & 0o777 == 0o755
        assert os.fstat(held.fileno()).st_ino == (host_dir / "libvgpu.so").stat().st_ino


def test_a_directory_of_another_owner_is_one_sentence(
    libsync_process, without_capabilities, keep, error_line, host_dir: Path
) -> None:
    host_dir.mkdir()
    os.chown(host_dir, 1234, 1234)
    line = error_line(libsync_process("once", *keep, before=without_capabilities, status=1))
    assert line == f"{host_dir}: cannot set owner and mode: Operation not permitted"


def test_nothing_else_is_written(libsync_process, keep, right, host_dir: Path, library: Path, tmp_path: Path) -> None:
    """In a mount namespace in which everything but the one directory is read-only."""
    tools.require_root()
    unshare = tools.require("unshare", package="util-linux")
    host_dir.mkdir()
    script = f'mount --bind {host_dir} {host_dir} && mount -o remount,bind,ro / && ! touch {tmp_path}/x && exec "$@"'
    before = (unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    libsync_process("once", *keep, before=before)
    assert right(host_dir, library)
