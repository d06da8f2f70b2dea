"""A container runtime for tests: a container is a process tree in its own mount and PID namespace, on this machine.

Its root is an overlay over the machine's root file system, so programs are there and nothing that it writes stays.
Network and cgroups are the machine's.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

LAUNCHER = Path(__file__).with_name("launch.py")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "SYS_CHROOT": 18,
    "MKNOD": 27,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}
"""What containerd leaves to a container by default (containerd: pkg/oci/spec.go, defaultUnixCaps)."""

SYSTEM_PREFIXES = (Path("/usr"), Path("/usr/local"))

PROBE_SECONDS = 60.0

ADDABLE = {"DAC_READ_SEARCH": 2}
"""What a container may get besides."""

HIDDEN = (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755))
"""Directories of the machine that no image would bring: empty in every container."""

ABSENT = ("/etc/ld.so.preload", "/usr/local/vgpu", "/var/lib/kai-resource-isolator")
"""Paths that are not in a container unless its spec mounts them, whatever this machine has there."""


class RuntimeFailure(Exception):
    """A container or a process in it could not be started; the text says why."""


@dataclass(frozen=True)
class Bind:
    """A file or directory of this machine at a path of the container."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True)
class Image:
    """What a container's image brings: what it runs by default, and paths of this machine bound read-only.

    `content` is the directory that a volume of this image shows.
    """

    entrypoint: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    content: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})

    def binds(self) -> list[Bind]:
        return [Bind(path, str(path), read_only=True) for path in self.paths]


def interpreter() -> tuple[Path, ...]:
    """Paths that bring this Python with its packages to a container, for an image's `paths`.

    A Python of the system is in the overlay already, and its prefix has to stay writable for mount points.
    """
    own, base = Path(sys.prefix), Path(sys.base_prefix)
    return tuple(path for path in dict.fromkeys((own, base)) if path not in SYSTEM_PREFIXES)


@dataclass(frozen=True)
class Credentials:
    """Whom a container's processes run as and what they may."""

    user: int = 0
    group: int = 0
    capabilities: tuple[int, ...] = tuple(CAPABILITIES.values())
    no_new_privileges: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """Everything that makes a container."""

    hostname: str
    command: Sequence[str]
    environment: Mapping[str, str]
    binds: Sequence[Bind] = ()
    library_directories: Sequence[str] = ()
    credentials: Credentials = Credentials()
    read_only_root: bool = False
    directory: str = "/"


class Process:
    """A process of a container: standard input and output are text pipes, standard error goes to a file."""

    def __init__(self, launcher: "subprocess.Popen[str]", pid: int, control: int, errors: Path) -> None:
        self._launcher = launcher
        self._control: int | None = control
        self.pid = pid
        """As this machine sees it."""
        self.errors = errors
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        self.stdin: IO[str] = launcher.stdin
        self.stdout: IO[str] = launcher.stdout

    def wait(self, timeout: float | None = None) -> int:
        """Exit status as a shell tells it. Raises subprocess.TimeoutExpired."""
        return self._launcher.wait(timeout)

    @property
    def running(self) -> bool:
        return self._launcher.poll() is None

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[int, str]:
        """Send `text`, close standard input, wait. Returns the exit status and what was printed."""
        output, _ = self._launcher.communicate(text, timeout)
        return self._launcher.returncode, output

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._launcher.terminate()

    def kill(self) -> None:
        """End the process by SIGKILL and wait; with a container's first process everything in it ends."""
        if self._control is not None:
            os.close(self._control)
            self._control = None
        self._launcher.wait()
        for stream in (self.stdin, self.stdout):
            # A broken pipe here is unsent input to a process that has ended.
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Container:
    """A running container: its first process and ways to start more in it."""

    def __init__(self, directory: Path, spec: ContainerSpec) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._processes: list[Process] = []
        self.spec = spec
        self.main = self._launch(spec.command, spec.environment, enter=None)

    def exec(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start another process in the container, with the container's environment and `environment` over it."""
        if not self.main.running:
            raise RuntimeFailure(f"the container has ended with status {self.main.wait()}: {self.errors()}")
        return self._launch(command, {**self.spec.environment, **(environment or {})}, enter=self.main.pid)

    def errors(self) -> str:
        """What the container's processes have written to standard error."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._directory.glob("*.stderr")))

    def stop(self, grace: float = 0) -> None:
        """SIGTERM, then after `grace` seconds SIGKILL, as a kubelet does; every process of the container ends."""
        if grace and self.main.running:
            self.main.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.main.wait(grace)
        for process in self._processes:
            process.kill()

    def _creation(self) -> dict[str, object]:
        scratch = self._directory / "root"
        scratch.mkdir()
        return {
            "scratch": str(scratch.resolve()),
            "hostname": self.spec.hostname,
            "hidden": HIDDEN,
            "absent": ABSENT,
            "binds": [{**asdict(item), "source": str(item.source.resolve(strict=True))} for item in self.spec.binds],
            "library_directories": self.spec.library_directories,
            "read_only_root": self.spec.read_only_root,
        }

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], enter: int | None) -> Process:
        number = next(self._numbers)
        errors = self._directory / f"{number}.stderr"
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as launchers:
            status_read, status_write = os.pipe()
            control_read, control_write = os.pipe()
            launchers.callback(os.close, status_write)
            launchers.callback(os.close, control_read)
            ours.callback(os.close, control_write)
            order = {
                "status": status_write,
                "control": control_read,
                "enter": enter,
                "create": self._creation() if enter is None else None,
                "command": command,
                "environment": environment,
                "directory": self.spec.directory,
                **asdict(self.spec.credentials),
            }
            file = self._directory / f"{number}.json"
            file.write_text(json.dumps(order))
            with errors.open("wb") as stderr:
                launcher = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(LAUNCHER), str(file)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    bufsize=1,
                    env={},
                    cwd="/",
                    pass_fds=(status_write, control_read),
                    start_new_session=True,
                )
            launchers.close()
            with open(status_read, encoding="utf-8") as status:  # noqa: PTH123
                said = dict(line.rstrip("\n").split(" ", 1) for line in status)
            ours.pop_all()
        process = Process(launcher, int(said.get("pid", 0)), control_write, errors)
        self._processes.append(process)
        if "error" in said or not process.pid:
            process.kill()
            raise RuntimeFailure(said.get("error") or errors.read_text(errors="replace").strip() or "no answer")
        return process


@contextlib.contextmanager
def running(directory: Path, spec: ContainerSpec) -> Iterator[Container]:
    """A container for the length of a block. `directory` is empty and takes its files."""
    container = Container(directory, spec)
    try:
        yield container
    finally:
        container.stop()


def probe(directory: Path) -> None:
    """Raise RuntimeFailure unless this machine lets this process run containers."""
    directory.mkdir()
    with running(directory, ContainerSpec("probe", ["/bin/true"], {})) as container:
        if (status := container.main.wait(PROBE_SECONDS)) != 0:
            raise RuntimeFailure(f"/bin/true ended with {status}: {container.errors()}")
