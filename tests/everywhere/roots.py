"""Root file systems as containers have them, and programs started in one with the library preloaded."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.everywhere import builds
from tests.everywhere.container import Ended, write_card, write_managed
from tests.everywhere.ways import command, compile_all, ways

from isolator_testing import debian
from isolator_testing.tools import require

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
SYSTEMS = {
    "bullseye": "Debian 11, glibc 2.31",
    "bookworm": "Debian 12, glibc 2.36",
    "trixie": "Debian 13, glibc 2.41",
    "sid": "Debian unstable",
}
MUSL = {"bookworm": "musl 1.2.3", "trixie": "musl 1.2.5"}


@dataclass(frozen=True)
class Root:
    """A folder that becomes `/`; programs of another machine are started by an emulator in it."""

    folder: Path
    machine: str
    emulator: str | None = None

    def run(self, *program: str, environment: dict[str, str] | None = None) -> Ended:
        """Start a program there with /proc and an environment that holds nothing else."""
        enter = builds.program("enter", os.uname().machine, "-static", build="enter", libc="musl")
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        if self.emulator:
            program = (self.emulator, *(word for variable in variables for word in ("-E", variable)), *program)
            variables = []
        done = subprocess.run(
            [enter, self.folder, *variables, *program],
            env={},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


def put_library(root: Path, machine: str) -> None:
    """What the webhook mounts into a container."""
    (root / "usr/local").mkdir(parents=True, exist_ok=True)
    write_managed(root / "usr/local/vgpu", builds.release(machine))
    (root / "usr/local/vgpu/libvgpu.so").chmod(0o755)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")


def put_driver(folder: Path, gpu: Path) -> None:
    """What a container runtime mounts for a card, into a folder where the loader looks."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(gpu / name, folder / name)
    write_card(folder / "fakegpu.conf")


def debian_root(folder: Path, suite: str, *include: str) -> Root:
    """A whole Debian, with more packages. Raises debian.Unavailable."""
    archive = debian.root_archive(suite, *include)
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--numeric-owner", "--file", str(archive), "-C", str(folder)], check=True)
    return Root(folder, "x86_64")


def libc_root(folder: Path, machine: str, suite: str, package: str = "libc6") -> Root:
    """Nothing but a C library, as in an image without a distribution. Raises debian.Unavailable."""
    files = debian.packages(package, suite=suite, architecture=DEBIAN[machine])
    shutil.copytree(files, folder, symlinks=True)
    for name in ("lib", "lib64"):
        # From Debian 13 on the package's files are below /usr, and another package brings the links.
        if not (folder / name).exists() and (folder / "usr" / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "dev").mkdir(exist_ok=True)
    emulator = None
    if machine != os.uname().machine:
        shutil.copy(require(f"qemu-{machine}-static", package="qemu-user-static"), folder / "emulator")
        emulator = "/emulator"
    return Root(folder, machine, emulator)


def try_ways(
    root: Root, gpu_libc: str, program_libc: str, library_folder: str, environment: dict[str, str] | None = None
) -> dict[str, str]:
    """What comes of each way to find CUDA in a root that has the library and a card."""
    gpu = builds.fakegpu(root.machine, gpu_libc)

    def build(name: str, *options: str, build: str) -> Path:
        return builds.program(name, root.machine, *options, build=build, libc=program_libc)

    programs = compile_all(build, gpu)
    inside = {}
    (root.folder / "opt").mkdir(exist_ok=True)
    for name, path in programs.items():
        shutil.copy(path, root.folder / "opt" / name)
        inside[name] = Path("/opt") / name
    results = {}
    for way in ways(root.machine, f"{library_folder}/libcuda.so.1", glibc="gnu" in program_libc):
        ended = root.run(*command(way, inside), environment=environment)
        assert ended.status == 0, (way.name, ended)
        assert ended.output.strip() == way.result, (way.name, ended)
        results[way.name] = ended.output.strip()
    return results
