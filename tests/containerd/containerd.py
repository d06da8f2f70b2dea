"""containerd with runc, started for tests: everything of it is below one directory and in namespaces of its own.

Its mount and PID namespaces end with it, so no mount and no process stays, however the tests end; its control groups
are removed at the end. `/run`, where its shims put their sockets, is a memory file system that only it sees.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import processes
from tests.containerd.cri import Cri, Refused

CGROUPS = Path("/sys/fs/cgroup")
START_SECONDS = 120.0
REMOVAL_SECONDS = 60.0

CURRENT = """\
version = 3
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{directory}/hosts"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
"""Configuration of containerd 2. A root without CAP_SYS_RESOURCE cannot lower its processes' OOM scores."""

OLD = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "{directory}/hosts"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
"""Configuration of containerd 1."""

_START = 'mount -t tmpfs -o mode=755 tmpfs /run && exec "$0" "$@"'


@dataclass(frozen=True)
class Containerd:
    """A runtime that answers."""

    directory: Path
    cri: Cri
    cgroup: str
    """Parent of the control groups of its pods, from the root of each hierarchy."""
    pid: int
    """Of containerd, as this machine sees it."""

    def bind(self, source: Path, target: Path) -> None:
        """Bind a file or directory of this machine where the runtime sees it, as the kubelet does for sub-paths."""
        command = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "mount", "--bind", str(source), str(target)]
        subprocess.run(command, check=True)

    def mounts(self) -> list[str]:
        """Mount points that its mount namespace has below its directory."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines if line.split()[4].startswith(f"{self.directory}/")]


@contextmanager
def running(directory: Path, program: Path, config: str, pause: str) -> Iterator[Containerd]:
    """Run a containerd for the length of a block, with its state in `directory`; its shim is beside the program.

    `config` is one of the configurations above, `pause` the image of sandboxes, in the registry of all images. At the
    end no process, mount or control group of it is left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text(config.format(directory=directory, pause=pause))
    registry = pause.partition("/")[0]
    hosts = directory / "hosts" / registry / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(f'server = "http://{registry}"\n')
    cgroup = f"/isolator-{secrets.token_hex(4)}"
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    # `unshare` dies with the tests, also when they are killed (processes.start), and its child with it.
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["sh", "-c", _START]
    command += [str(program), "--config", str(directory / "config.toml")]
    started = processes.start("containerd", command, directory / "containerd.log", environment=environment)
    try:
        with Cri(directory / "containerd.sock") as cri:
            _wait(started, cri)
            yield Containerd(directory, cri, cgroup, _child(started.process.pid))
    finally:
        # With the first process of its PID namespace, which `unshare` takes along, all others end.
        started.stop(signal.SIGKILL)
        _remove_control_groups(cgroup)


def _child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _wait(started: processes.Running, cri: Cri) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        started.check_alive()
        try:
            conditions = cri.runtime("Status", {})["status"]["conditions"]
        except Refused as refusal:
            told = str(refusal)
        else:
            told = str(conditions)
            if any(one["type"] == "RuntimeReady" and one["status"] for one in conditions):
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"containerd is not ready: {told}\n{started.last_lines()}")
        time.sleep(0.2)


def control_groups(cgroup: str) -> list[Path]:
    """Directories of a control group and of those below it, in every hierarchy, the deepest first."""
    hierarchies = [CGROUPS, *CGROUPS.iterdir()] if CGROUPS.is_dir() else []
    found: list[Path] = []
    for hierarchy in hierarchies:
        top = hierarchy / cgroup.lstrip("/")
        if top.is_dir() and not top.is_symlink():
            found += [top, *(path for path in top.rglob("*") if path.is_dir())]
    return sorted(set(found), key=lambda path: len(path.parts), reverse=True)


def _remove_control_groups(cgroup: str) -> None:
    """Remove control groups as soon as their last process is gone. Raises RuntimeError if one stays."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while left := control_groups(cgroup):
        for path in left:
            with contextlib.suppress(OSError):
                path.rmdir()
        if time.monotonic() > deadline:
            raise RuntimeError(f"control groups that cannot be removed: {', '.join(map(str, left))}")
        time.sleep(0.1)
