"""NVIDIA's Python bindings for the Python of a Debian, and a program that takes memory by them."""

from importlib.metadata import version
from pathlib import Path

from tests.everywhere import builds

from isolator_testing import debian

PACKAGES = ("cuda-bindings", "cuda-pathfinder")
PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
LAST_FOR_PYTHON_39 = ("13.0.3", "1.3.2")

PROGRAM = """
from cuda.bindings import driver

def ok(answer):
    error, *values = answer
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values

GIB = 1 << 30
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
free, total = ok(driver.cuMemGetInfo())
# Below the limit, above it, up to it, and a byte above it.
answers = [int(driver.cuMemAlloc(size)[0]) for size in (3 * GIB, 2 * GIB, free - 3 * GIB, 1)]
if (total, answers) == (4 * GIB, [0, 2, 0, 2]):
    print("capped")
elif total > 4 * GIB and answers[:2] == [0, 0]:
    print("not capped")
else:
    print(total, answers)
"""


def versions(suite: str) -> tuple[str, ...]:
    """Of PACKAGES: the ones of this environment, or the last that the suite's Python can have."""
    return LAST_FOR_PYTHON_39 if PYTHON[suite] == "3.9" else tuple(version(name) for name in PACKAGES)


def ways(suite: str) -> dict[str, dict[str, str]]:
    """What tells the bindings to ask for other functions, by name: variables of the environment."""
    client = f"cuda-bindings {versions(suite)[0]}"
    return {
        client: {},
        f"{client}, per-thread default streams": {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1"},
    }


def folder(suite: str) -> Path:
    """Folder with the bindings for a suite's Python, from their wheels. Raises debian.Unavailable."""
    python = PYTHON[suite]
    wanted = [f"{name}=={number}" for name, number in zip(PACKAGES, versions(suite), strict=True)]
    place = debian.CACHE / "packages" / "+".join([f"python{python}", *wanted])
    with debian.made_once(place) as making:
        if making is not None:
            chosen = ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28", "--only-binary=:all:"]
            command = ["uv", "pip", "install", "--quiet", "--no-deps", *chosen, "--target", str(making), *wanted]
            debian.run(command, builds.ROOT)
    return place
