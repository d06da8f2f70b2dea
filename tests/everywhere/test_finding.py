"""Every way to find a function, with the shipped library on this machine's C library."""

import os
from functools import partial
from pathlib import Path

import pytest
from tests.everywhere import builds
from tests.everywhere.container import Container, machine_gpu
from tests.everywhere.ways import Way, command, compile_all, ways

from isolator_testing.tools import require

MACHINE = os.uname().machine
COMPILERS = {"zig for glibc 2.17": None, "gcc": "gcc", "clang": "clang"}


@pytest.fixture(scope="session", params=COMPILERS)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    name = COMPILERS[request.param]
    if name is None:
        return compile_all(partial(_for_oldest), machine_gpu())
    compiler = str(require(name, package=name))
    folder = tmp_path_factory.mktemp(name)
    return compile_all(partial(_here, compiler, folder), machine_gpu())


def _for_oldest(name: str, *options: str, build: str) -> Path:
    return builds.program(name, MACHINE, *options, build=build)


def _here(compiler: str, folder: Path, name: str, *options: str, build: str) -> Path:
    return builds.compiled([compiler], name, *options, folder=folder / build)


WAYS = ways(MACHINE, "DRIVER")


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_memory_is_capped_however_cuda_is_found(container: Container, programs: dict[str, Path], way: Way) -> None:
    driver = machine_gpu() / "libcuda.so.1"
    ended = container.run(*command(way, programs | {"DRIVER": driver}))
    assert (ended.output.strip(), ended.status) == (way.result, 0), ended.errors


@pytest.mark.parametrize("version", ["GLIBC_2.2.5", "GLIBC_2.34"])
def test_each_version_of_dlsym_leads_to_ours(container: Container, programs: dict[str, Path], version: str) -> None:
    if MACHINE != "x86_64":
        pytest.skip("names of x86-64")
    assert container.run(programs["allocate"], "dlvsym", version).output == "capped\n"
