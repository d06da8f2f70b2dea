"""Every way to find a function, with the shipped library on this machine's C library."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from tests.everywhere import builds
from tests.everywhere.container import Container, machine_gpu
from tests.everywhere.test_release import defined, wrapped
from tests.everywhere.ways import Way, command, compile_all, ways
from tests.fakegpu.references import DRIVER_SUITES, driver_library

from isolator_testing import debian
from isolator_testing.tools import require, skip_or_fail

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


def test_without_a_driver_every_wrapper_has_one_answer(without_driver: Container) -> None:
    program = builds.program("absent", MACHINE, "-ldl", build="absent")
    ended = without_driver.run(program)
    answers = dict(line.split() for line in ended.output.splitlines())
    assert ended.status == 0
    assert set(answers) == wrapped()
    assert {answer for name, answer in answers.items() if name.startswith("cu")} == {"34"}  # CUDA_ERROR_STUB_LIBRARY
    assert {answer for name, answer in answers.items() if name.startswith("nvml")} == {"12"}  # LIBRARY_NOT_FOUND


def test_a_programs_own_function_of_that_name_is_its_own(container: Container) -> None:
    program = builds.program("own_cuinit", MACHINE, "-rdynamic", "-ldl", build="own")
    assert container.run(program).status == 0


def test_namespaces_are_as_many_and_as_separate_as_without_us(container: Container, without_driver: Container) -> None:
    program = builds.program("namespaces", MACHINE, "-ldl", "-lm", build="namespaces")
    assert container.run(program, preload="").status == 0
    assert container.run(program).status == 0
    assert without_driver.run(program).status == 0


@pytest.mark.parametrize("driver", DRIVER_SUITES)
def test_addresses_that_nvidias_own_driver_hands_out_are_translated(container: Container, driver: str) -> None:
    """Every name, version and flag: the same function as without us, ours if it is wrapped."""
    try:
        library = driver_library(driver, "libcuda.so")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    program = builds.program("proc_addresses", MACHINE, "-ldl", build="proc_addresses")
    exported = {name for name in defined(library) if name.startswith("cu")}
    names = sorted(
        exported | {re.sub(r"(_v[234])?(_ptsz|_ptds)?$", "", name) for name in exported} | {"cuNoSuchFunction"}
    )
    asked = "\n".join(names) + "\n"
    with_ours = container.run(program, library, text=asked).output.splitlines()
    without = container.run(program, library, text=asked, preload="").output.splitlines()
    assert len(without) == len(names) * 15 * 5 * 2
    ours = 0
    for here, there in zip(with_ours, without, strict=True):
        *answer, file, function = here.split()
        assert [*answer, function] == [*there.split()[:-2], there.split()[-1]]
        assert function != "?"
        assert file == ("-" if function == "-" else "libvgpu.so" if function in wrapped() else library.name)
        ours += file == "libvgpu.so"
    assert ours > 1000
