"""What judges the fake: NVIDIA's headers from PyPI and NVIDIA's drivers from Debian, fetched once into the cache.

Nothing of it is installed or shipped. Headers come out of wheels (zip files), drivers out of packages.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from isolator_testing.debian import CACHE, Unavailable, packages, run

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


def _headers(requirement: str, name: str) -> Path:
    """Folder of the header `name`, from a wheel."""
    folder = CACHE / "cuda-headers" / requirement.replace("==", "-")
    if not list(folder.rglob(name)):
        folder.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", requirement], folder)
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


def driver_library(driver: str, name: str) -> Path:
    """NVIDIA's own `libcuda.so` or `libnvidia-ml.so` of a driver of `DRIVER_SUITES`; both load without a GPU."""
    folder = packages("libcuda1", "libnvidia-ml1", suite=DRIVER_SUITES[driver], component="non-free")
    found = list(folder.rglob(f"{name}.{driver}.*"))
    if not found:
        raise Unavailable(f"Debian's {DRIVER_SUITES[driver]} has no driver {driver}")
    return found[0]
