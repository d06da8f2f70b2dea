"""The library is replaced on the node 200 times while 50 containers allocate with it: none of them notices."""

import hashlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isolator_core.settings import main
from isolator_libsync.cli import COMMANDS
from isolator_testing import tools

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CONTAINERS = 50
UPGRADES = 200
LIMIT_MIB = 200
WAIT_SECONDS = 120

CARD = """\
state = {state}
[device]
name = Test card
uuid = GPU-11111111-2222-3333-4444-555555555555
memory-mib = 32768
context-mib = 8
"""


@dataclass(frozen=True)
class Site:
    """A node with a fake card, two versions of the library and a program that allocates."""

    directory: Path
    host_dir: Path
    versions: tuple[Path, Path]
    program: Path

    def install(self, version: Path) -> None:
        arguments = ["once", "--host-dir", self.host_dir, "--library", version, "--log-level", "error"]
        assert main("isolator-libsync", "ISOLATOR_LIBSYNC_", "", COMMANDS, list(map(str, arguments))) == 0

    def start(self, number: int) -> "subprocess.Popen[str]":
        """A container of its own: the node's library bind-mounted as the kubelet does, with limits and a region."""
        container = self.directory / f"container-{number}"
        for folder in ("limits", f"containers/uid-{number}_main"):
            (container / folder).mkdir(parents=True)
        (container / "limits" / "request").write_text(f"container=main\nmemory={LIMIT_MIB}m\n")
        (container / "limits" / "uid").write_text(f"uid-{number}")
        library = container / "libvgpu.so"
        library.touch()
        script = f'mount --bind -o ro {self.host_dir}/libvgpu.so {library} && LD_PRELOAD={library} exec "$0"'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, self.program]
        environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(ROOT / "tests/fakegpu/build"),
            "FAKEGPU_CONFIG": str(self.directory / "card.conf"),
        }
        return subprocess.Popen(
            list(map(str, command)),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    tools.require_root()
    tools.require("unshare", package="util-linux")
    objcopy = tools.require("objcopy", package="binutils")
    compiler = tools.require("cc", package="gcc")
    built = ROOT / "native/hami-core/build/libvgpu.so"
    if not built.exists() or not (ROOT / "tests/fakegpu/build/libcuda.so.1").exists():
        tools.skip_or_fail("the library or the fake GPU is not built: ./dev run nox -s native")
    first, second, note = tmp_path / "first.so", tmp_path / "second.so", tmp_path / "note"
    shutil.copy(built, first)
    note.write_text("the second version")
    subprocess.run([objcopy, "--add-section", f".version={note}", first, second], check=True)
    program = tmp_path / "allocate"
    source = Path(__file__).with_name("allocate.c")
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", source, "-o", program, "-ldl"], check=True)
    (tmp_path / "card.conf").write_text(CARD.format(state=tmp_path / "card.state"))
    return Site(tmp_path, tmp_path / "node", (first, second), program)


Started = list["subprocess.Popen[str]"]


@pytest.fixture
def containers(site: Site) -> Iterator[Callable[[int], Started]]:
    started: Started = []

    def start(count: int) -> Started:
        for number in range(count):
            started.append(site.start(number))
        for process in started:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], WAIT_SECONDS)[0], "a container that says its memory"
            line = process.stdout.readline()
            assert line == f"total {LIMIT_MIB << 20}\n", line + "".join(process.communicate(timeout=WAIT_SECONDS))
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate("", timeout=WAIT_SECONDS)
    return process.returncode, out, err


def test_upgrades_disturb_no_running_container(site: Site, containers: Callable[[int], Started]) -> None:
    site.install(site.versions[0])
    processes = containers(CONTAINERS)
    for upgrade in range(1, UPGRADES + 1):
        site.install(site.versions[upgrade % 2])
        assert digest_of(site.host_dir / "libvgpu.so") == digest_of(site.versions[upgrade % 2])
        time.sleep(0.01)
    first = digest_of(site.versions[0])
    for number, process in enumerate(processes):
        library = site.directory / f"container-{number}" / "libvgpu.so"
        assert digest_of(Path(f"/proc/{process.pid}/root{library}")) == first
        status, out, err = end(process)
        assert (status, err) == (0, ""), (number, status, out, err)
        assert out.startswith("allocations "), (number, out)
        assert int(out.split()[1]) >= 20, (number, out)


def test_this_would_see_a_library_overwritten_in_place(site: Site, containers: Callable[[int], Started]) -> None:
    """What the test above rules out, done on purpose."""
    site.install(site.versions[0])
    (process,) = containers(1)
    shutil.copyfile(site.versions[1], site.host_dir / "libvgpu.so")
    os.truncate(site.host_dir / "libvgpu.so", 0)
    assert process.wait(WAIT_SECONDS) < 0
