"""A container to start programs in: the library with its limit, a fake card, and a region that is made there."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.everywhere import builds

UID = "0c9e7a52-6d2f-4b7e-9a53-b7a35d0c1f11"
LIMIT_MIB = 4096
CARD = """driver = 535.183.01
cuda = 12.2
[device]
name = Tesla T4
uuid = GPU-11111111-2222-3333-4444-555555555555
memory-mib = 15360
context-mib = 100
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended: the exit status (128 + n for signal n) and what it printed."""

    status: int
    output: str
    errors: str


def write_managed(folder: Path, library: Path, request: str = f"container=main\nmemory={LIMIT_MIB}m\n") -> Path:
    """What the webhook mounts at /usr/local/vgpu, in `folder`. Returns the library there."""
    (folder / "limits").mkdir(parents=True)
    (folder / "containers").mkdir(mode=0o777)
    (folder / "containers").chmod(0o777)
    (folder / "limits" / "request").write_text(request)
    (folder / "limits" / "uid").write_text(UID)
    placed = folder / "libvgpu.so"
    placed.write_bytes(library.read_bytes())
    placed.chmod(0o644)
    return placed


def write_card(config: Path) -> None:
    """Configuration of a fake Tesla T4, with the state beside it."""
    config.write_text("state = gpu.state\n" + CARD)


@dataclass(frozen=True)
class Container:
    """A folder on this machine in which a library is managed."""

    folder: Path
    library: Path
    gpu: Path | None
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, **more: str) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"], "FAKEGPU_CONFIG": str(self.folder / "fakegpu.conf"), **self.environment}
        if self.gpu is not None:
            found["LD_LIBRARY_PATH"] = str(self.gpu)
        return found | more

    def run(self, *command: str | Path, preload: str | None = None, text: str = "", **variables: str) -> Ended:
        """Start a program with the library preloaded, or with the list of libraries `preload`, and wait for its end.

        `text` is its standard input.
        """
        preloaded = str(self.library) if preload is None else preload
        done = subprocess.run(
            [str(word) for word in command],
            env=self.variables(**({"LD_PRELOAD": preloaded} if preloaded else {}) | variables),
            capture_output=True,
            text=True,
            timeout=300,
            input=text,
            check=False,
        )
        return Ended(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)


def make_container(folder: Path, library: Path, gpu: Path | None) -> Container:
    """A managed container with a limit of 4 GiB; without `gpu` there is no driver in it."""
    placed = write_managed(folder / "vgpu", library)
    write_card(folder / "fakegpu.conf")
    return Container(folder, placed, gpu)


def machine_library() -> Path:
    """The release library of this machine."""
    return builds.release(os.uname().machine)


def machine_gpu() -> Path:
    return builds.fakegpu(os.uname().machine)
