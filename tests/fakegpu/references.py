"""What judges the fake: NVIDIA's headers from PyPI and NVIDIA's drivers from Debian, fetched once into the cache.

Nothing of it is installed or shipped. Headers come out of wheels (zip files), drivers out of packages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator"
CUDA_WHEELS = {
    "11.8": "nvidia-cuda-runtime-cu11==11.8.89",
    "12.9": "nvidia-cuda-runtime-cu12==12.9.79",
    "13.5": "nvidia-cuda-runtime==13.5.37",
}
NVML_WHEELS = {
    "11.8": "nvidia-nvml-dev-cu11==11.8.86",
    "12.9": "nvidia-nvml-dev-cu12==12.9.79",
    "13.5": "nvidia-nvml-dev==13.5.37",
}
DRIVER_SUITES = {"535": "bookworm", "550": "trixie"}


class Unavailable(Exception):
    """A reference that cannot be had here, and why."""


def _run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")


def _headers(requirement: str, name: str) -> Path:
    """Folder of the header `name`, from a wheel."""
    folder = CACHE / "cuda-headers" / requirement.replace("==", "-")
    if not list(folder.rglob(name)):
        folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", requirement], folder)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            wheel.unlink()
    found = list(folder.rglob(name))
    if not found:
        raise Unavailable(f"{requirement} has no {name}")
    return found[0].parent


def cuda_headers(version: str) -> Path:
    """Folder with NVIDIA's cuda.h of a CUDA version of `CUDA_WHEELS`."""
    return _headers(CUDA_WHEELS[version], "cuda.h")


def nvml_headers(version: str) -> Path:
    """Folder with NVIDIA's nvml.h of a CUDA version of `NVML_WHEELS`."""
    return _headers(NVML_WHEELS[version], "nvml.h")


def _debian_sources(suite: str) -> str:
    """An entry for the non-free component of a suite, on the mirror that this machine uses."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        uri = re.search(r"^URIs:\s*(\S+/debian/?)\s*$", file.read_text(), re.MULTILINE)
        signed = re.search(r"^Signed-By:\s*(\S+)\s*$", file.read_text(), re.MULTILINE)
        if uri:
            by = f"Signed-By: {signed[1]}\n" if signed else ""
            return f"Types: deb\nURIs: {uri[1]}\nSuites: {suite}\nComponents: non-free\n{by}"
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list")]
    for line in "\n".join(file.read_text() for file in lists if file.exists()).splitlines():
        entry = re.match(r"deb\s+(\[.*\]\s+)?(\S+/debian/?)\s", line)
        if entry:
            return f"Types: deb\nURIs: {entry[2]}\nSuites: {suite}\nComponents: non-free\n"
    raise Unavailable("this machine has no Debian mirror in its apt sources")


def _download_packages(suite: str, folder: Path) -> None:
    """Download and unpack NVIDIA's two libraries with an apt state of their own."""
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "state"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "debian.sources").write_text(_debian_sources(suite))
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/debian.sources";\nDir::Etc::sourceparts "-";\nDir::State "{apt}/state";\n'
        f'Dir::State::lists "{apt}/lists";\nDir::Cache "{apt}/cache";\nAPT::Sandbox::User "root";\n'
    )
    with_apt = {"APT_CONFIG": str(apt / "apt.conf")}
    _run(["apt-get", "update", "--quiet"], folder, with_apt)
    _run(["apt-get", "download", "--quiet", "libcuda1", "libnvidia-ml1"], folder, with_apt)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(package), str(folder)], folder)
        package.unlink()
    subprocess.run(["rm", "-r", str(apt)], check=True)


def driver_library(driver: str, name: str) -> Path:
    """NVIDIA's own `libcuda.so` or `libnvidia-ml.so` of a driver of `DRIVER_SUITES`; both load without a GPU."""
    folder = CACHE / "nvidia-drivers" / driver
    found = list(folder.rglob(f"{name}.{driver}.*"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        if not Path("/usr/bin/apt-get").exists():
            raise Unavailable("NVIDIA's drivers come from Debian's packages, and this machine has no apt-get")
        _download_packages(DRIVER_SUITES[driver], folder)
        found = list(folder.rglob(f"{name}.{driver}.*"))
    if not found:
        raise Unavailable(f"Debian's {DRIVER_SUITES[driver]} has no driver {driver}")
    return found[0]
