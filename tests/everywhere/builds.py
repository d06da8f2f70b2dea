"""What is tried everywhere, built by zig: the release library, the fake GPU, and test programs."""

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY_FOLDER = ROOT / "native" / "hami-core"
FAKEGPU_FOLDER = ROOT / "tests" / "fakegpu"
PROGRAMS = Path(__file__).parent / "programs"
BUILD = Path(__file__).parent / "build"
MACHINES = ("x86_64", "aarch64")
OLDEST = "gnu.2.17"
ZIG = f"{sys.executable} -m ziglang"


def compiler(machine: str, libc: str = OLDEST) -> list[str]:
    """Command of the C compiler for a machine and C library, as zig names them."""
    return [*ZIG.split(), "cc", "-target", f"{machine}-linux-{libc}"]


def _dynamic(libc: str) -> list[str]:
    """zig links statically with musl unless told otherwise."""
    return ["-dynamic"] if libc == "musl" else []


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def _alone(command: list[str]) -> None:
    """Run a build that several test processes may want at once."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run(command)


def make_release(folder: Path) -> None:
    """Build `folder`/release/MACHINE/libvgpu.so."""
    _alone(["make", "-C", str(LIBRARY_FOLDER), f"ZIG={ZIG}", f"BUILD={folder}", "release"])


@cache
def release(machine: str) -> Path:
    """The library as it is shipped."""
    make_release(LIBRARY_FOLDER / "build")
    return LIBRARY_FOLDER / "build" / "release" / machine / "libvgpu.so"


@cache
def fakegpu(machine: str, libc: str = OLDEST) -> Path:
    """Folder with libcuda.so.1 and libnvidia-ml.so.1."""
    folder = BUILD / machine / libc / "fakegpu"
    _alone(
        [
            "make",
            "-C",
            str(FAKEGPU_FOLDER),
            f"CC={' '.join([*compiler(machine, libc), *_dynamic(libc)])}",
            f"BUILD={folder}",
        ]
    )
    return folder


@cache
def program(name: str, machine: str, *options: str, build: str, libc: str = OLDEST) -> Path:
    """A program of the folder `programs`; `build` tells the builds of one source apart."""
    linking = [] if "-static" in options else _dynamic(libc)
    return compiled([*compiler(machine, libc), *linking], name, *options, folder=BUILD / machine / libc / build)


def compiled(command: list[str], name: str, *options: str, folder: Path) -> Path:
    """The same by any compiler."""
    source = PROGRAMS / f"{name}.c"
    folder.mkdir(parents=True, exist_ok=True)
    making = folder / f".{name}.{os.getpid()}"
    warnings = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    _run([*command, *warnings, "-g", "-I", str(LIBRARY_FOLDER), "-o", str(making), str(source), *options])
    return making.rename(folder / name)
