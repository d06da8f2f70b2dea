"""The service: damage is found, put right and counted, and the probes tell the truth."""

import mmap
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isolator_testing import tools


def overwritten_in_place(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"\0" * 16)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def replaced_by_rename(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"other")
    other.rename(path)


def closed(path: Path) -> None:
    path.chmod(0)


def moved_away(path: Path) -> None:
    path.rename(path.with_name("away"))


DAMAGE = [
    (Path.unlink, {"missing"}),
    (emptied, {"content"}),
    (overwritten_in_place, {"content"}),
    (replaced_by_rename, {"content", "missing"}),
    (closed, {"mode", "content"}),
    (moved_away, {"missing"}),
]


@pytest.mark.parametrize(("damage", "kinds"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
def test_damage_is_repaired_and_counted(
    start, keep, until, right, host_dir: Path, library: Path, name: str, damage: Callable[[Path], None], kinds: set[str]
) -> None:
    service = start(*keep)
    service.read_until("right")
    until(lambda: service.get("/readyz")[0] == 200, "ready")
    assert service.metric("isolator_libsync_installed_total") == 2
    damage(host_dir / name)
    until(lambda: right(host_dir, library), "repaired")

    def counted() -> float:
        return sum(service.metric(f'isolator_libsync_repaired_total{{finding="{kind}"}}') for kind in kinds)

    until(lambda: counted() >= 1, "counted")
    assert service.metric("isolator_libsync_installed_total") == 2
    assert service.stop() == 0


def test_a_directory_that_a_runtime_makes_in_a_files_place_is_replaced(
    start, keep, until, right, host_dir: Path, library: Path
) -> None:
    """While the service is stopped, as a node may be busy, so that the runtime's directory stands there for sure."""
    service = start(*keep)
    service.read_until("right")
    service.process.send_signal(signal.SIGSTOP)
    for name in ("libvgpu.so", "ld.so.preload"):
        (host_dir / name).unlink()
        (host_dir / name).mkdir()
    service.process.send_signal(signal.SIGCONT)
    until(lambda: right(host_dir, library), "repaired")
    until(lambda: service.metric('isolator_libsync_repaired_total{finding="not_a_file"}') == 2, "counted")
    assert sorted(path.name for path in host_dir.iterdir()) == ["ld.so.preload", "libvgpu.so"]


def test_the_whole_directory_comes_back(start, keep, until, right, host_dir: Path, library: Path) -> None:
    service = start(*keep)
    service.read_until("right")
    host_dir.rename(host_dir.with_name("away"))
    until(lambda: right(host_dir, library), "made anew")
    shutil.rmtree(host_dir.with_name("away"))
    # What is kept and watched now is the new one.
    (host_dir / "libvgpu.so").unlink()
    until(lambda: right(host_dir, library), "repaired")


def test_what_the_kernel_does_not_tell_is_found(start, keep, until, right, host_dir: Path, library: Path) -> None:
    """A write through a mapping raises no event as long as the mapping lasts."""
    service = start(*keep)
    service.read_until("right")
    with (host_dir / "libvgpu.so").open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[-1] = 0xFF
        mapped.flush()
        until(lambda: right(host_dir, library), "repaired")


@pytest.mark.root
def test_without_inotify_damage_is_still_repaired(start, keep, until, right, host_dir: Path, library: Path) -> None:
    """A user namespace of its own has its own limits; with no watch to be had, looking from time to time remains."""
    tools.require_root()
    unshare = tools.require("unshare", package="util-linux")
    made = subprocess.run([unshare, "--user", "--map-root-user", "true"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        tools.skip_or_fail(f"cannot make a user namespace here: {made.stderr.strip()}")
    script = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'
    service = start(*keep, before=(unshare, "--user", "--map-root-user", "sh", "-c", script, "sh"))
    service.read_until("not_watching")
    until(lambda: service.get("/readyz")[0] == 200, "ready")
    assert service.metric("isolator_libsync_watching") == 0
    (host_dir / "libvgpu.so").unlink()
    until(lambda: right(host_dir, library), "repaired")


def test_a_stream_of_changes_does_not_keep_a_core_busy(start, keep, host_dir: Path) -> None:
    service = start(*keep)
    service.read_until("right")
    statistics = Path(f"/proc/{service.process.pid}/schedstat")
    before, begin = int(statistics.read_text().split()[0]), time.monotonic()
    while time.monotonic() < begin + 2:
        (host_dir / "other").touch()
        (host_dir / "other").unlink()
    used = (int(statistics.read_text().split()[0]) - before) / 1e9
    assert used < 0.5 * (time.monotonic() - begin)


def test_another_service_waits_and_takes_over(start, keep, until, right, host_dir: Path, library: Path) -> None:
    first = start(*keep)
    first.read_until("right")
    second = start(*keep)
    assert second.read_until("not_right")["finding"] == "kept_by_another"
    assert second.get("/readyz")[0] == 503
    first.process.kill()
    until(lambda: second.get("/readyz")[0] == 200, "taken over")
    (host_dir / "libvgpu.so").unlink()
    until(lambda: right(host_dir, library), "repaired")


def test_once_refuses_while_a_service_keeps_the_directory(start, keep, libsync, error_line, host_dir: Path) -> None:
    service = start(*keep)
    service.read_until("right")
    line = error_line(libsync("once", *keep, status=1))
    assert line == f"{host_dir}: another isolator-libsync keeps this directory"
    assert libsync("check", *keep).stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly_and_leave_the_files(
    start, keep, right, host_dir: Path, library: Path, number: signal.Signals
) -> None:
    service = start(*keep)
    service.read_until("right")
    service.process.send_signal(number)
    assert service.process.wait(50) == 0
    assert right(host_dir, library)


def test_a_taken_port_is_one_sentence(libsync, keep, error_line) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = error_line(libsync("run", *keep, "--listen-address", "127.0.0.1", "--listen-port", port, status=1))
    assert line == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_probes_and_metrics(start, keep, until, library: Path) -> None:
    service = start(*keep)
    until(lambda: service.get("/readyz") == (200, "ok\n"), "ready")
    assert service.get("/healthz") == (200, "ok\n")
    assert service.get("/")[0] == 404
    assert service.metric("isolator_libsync_ready") == 1
    assert service.metric("isolator_libsync_watching") == 1
    assert abs(service.metric("isolator_libsync_last_pass_timestamp_seconds") - time.time()) < 50
    digest = subprocess.run(["sha256sum", library], capture_output=True, text=True, check=True).stdout.split()[0]
    assert service.metric(f'isolator_libsync_library_info{{sha256="{digest}"}}') == 1
    assert service.metric("process_resident_memory_bytes") > 0


@pytest.mark.root
@pytest.mark.parametrize("happening", ["removed", "moved"])
def test_ends_when_the_mounted_directory_is_no_longer_the_nodes(
    start, until, library: Path, tmp_path: Path, happening: str
) -> None:
    """As in a pod: only a container started anew is given the directory that the node's path leads to."""
    tools.require_root()
    unshare = tools.require("unshare", package="util-linux")
    node, inside = tmp_path / "node", tmp_path / "inside"
    node.mkdir()
    inside.mkdir()
    # The mount is made in the service's own mount namespace; `node` itself stays free to be moved or removed.
    script = f'mount --bind {node} {inside} && exec "$@"'
    flags = ("--host-dir", inside, "--library", library)
    before = (unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    service = start(*flags, before=before)
    service.read_until("right")
    assert list(inside.iterdir()) == []
    if happening == "removed":
        shutil.rmtree(node, ignore_errors=True)
        until(lambda: not node.exists() or shutil.rmtree(node, ignore_errors=True), "removed")
    else:
        node.rename(tmp_path / "elsewhere")
    assert service.process.wait(50) == 1
    message = f"isolator-libsync: {inside}: was moved or removed on the node; start this container anew\n"
    until(lambda: service.read_line() == message, "said")
