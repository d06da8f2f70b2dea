"""Modules and libraries: code costs memory when it is loaded, and launches check what they are given."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, make_machine

PTX = (
    "// generated\n.version 8.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .b8 table[1000];\n.visible .global .u64 counter;\n"
    ".visible .entry first(.param .u64 a)\n{ ld.global.u32 %r1, [%rd1]; ret; }\n"
    ".visible .entry second()\n{ ret; }\n"
)
LOAD = f"module = ok(d.cuModuleLoadData({PTX.encode()!r} + bytes(1)))"
UNIT = 2 * MIB
LAUNCH = "d.cuLaunchKernel(f, {grid}, 1, 1, {block}, 1, 1, 0, 0, 0, 0)"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def test_lazy_code_is_loaded_by_the_first_launch(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        assert machine.held(process) == {"context": CONTEXT_BYTES, "module": UNIT}  # its variables
        process.run("f = ok(d.cuModuleGetFunction(module, b'first'))")
        assert machine.held(process)["module"] == UNIT
        process.run(f"ok({LAUNCH.format(grid=1, block=32)})")
        assert machine.held(process)["module"] == 2 * UNIT
        process.run("ok(d.cuModuleUnload(module))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_eager_code_is_loaded_with_the_module(machine: Machine) -> None:
    with machine.user(CUDA_MODULE_LOADING="EAGER") as process:
        process.run(LOAD)
        assert machine.held(process)["module"] == 2 * UNIT


def test_code_that_does_not_fit_is_refused_at_the_launch(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("f = ok(d.cuModuleGetFunction(module, b'first')); p = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0]))")
        assert process.run(f"code({LAUNCH.format(grid=1, block=32)})") == "OUT_OF_MEMORY"


def test_variables_have_addresses_and_sizes(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("p, size = ok(d.cuModuleGetGlobal(module, b'table')); out = bytearray(1000)")
        process.run("ok(d.cuMemsetD8(p, 4, 1000)); ok(d.cuMemcpyDtoH(out, p, 1000))")
        assert process.run("size, out == bytes([4]) * 1000") == [1000, True]
        assert process.run("ok(d.cuModuleGetGlobal(module, b'counter'))[1]") == 8
        assert process.run("code(d.cuModuleGetGlobal(module, b'nothing')), code(d.cuMemFree(p))") == [
            "NOT_FOUND",
            "INVALID_VALUE",
        ]


def test_functions_are_found_by_name(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        assert process.run("ok(d.cuModuleGetFunctionCount(module))") == 2
        assert process.run("code(d.cuModuleGetFunction(module, b'third'))") == "NOT_FOUND"
        assert process.run("ok(d.cuFuncGetName(ok(d.cuModuleGetFunction(module, b'second'))))") == "second"


@pytest.mark.parametrize(
    ("image", "result"),
    [(b"no code", "INVALID_IMAGE"), (b".target sm_75", "INVALID_PTX"), (b"\x7fELF" + bytes(100), "INVALID_IMAGE")],
)
def test_what_is_no_code_is_refused(machine: Machine, image: bytes, result: str) -> None:
    with machine.user() as process:
        assert process.run(f"code(d.cuModuleLoadData({image!r} + bytes(1)))") == result
        assert machine.held(process) == {"context": CONTEXT_BYTES}


@pytest.mark.parametrize(
    ("grid", "block", "result"),
    [(1, 1024, "SUCCESS"), (1, 1025, "INVALID_VALUE"), (0, 1, "INVALID_VALUE"), (1, 0, "INVALID_VALUE")],
)
def test_a_launch_checks_its_shape(machine: Machine, grid: int, block: int, result: str) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("f = ok(d.cuModuleGetFunction(module, b'first'))")
        assert process.run(f"code({LAUNCH.format(grid=grid, block=block)})") == result


def test_a_function_of_an_unloaded_module_is_no_handle(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("f = ok(d.cuModuleGetFunction(module, b'first')); ok(d.cuModuleUnload(module))")
        assert process.run(f"code({LAUNCH.format(grid=1, block=1)})") == "INVALID_HANDLE"


def test_a_cooperative_launch_must_fit_at_once(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("f = ok(d.cuModuleGetFunction(module, b'first'))")
        launch = "code(d.cuLaunchCooperativeKernel(f, {}, 1, 1, 1024, 1, 1, 0, 0, 0))"
        assert process.run(launch.format(40)) == "SUCCESS"
        assert process.run(launch.format(41)) == "COOPERATIVE_LAUNCH_TOO_LARGE"


def test_a_library_becomes_a_module_in_each_context_that_uses_it(machine: Machine) -> None:
    with machine.user() as process:
        process.run(f"library = ok(d.cuLibraryLoadData({PTX.encode()!r} + bytes(1), None, None, 0, None, None, 0))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("kernel = ok(d.cuLibraryGetKernel(library, b'first')); f = ok(d.cuKernelGetFunction(kernel))")
        process.run(f"ok({LAUNCH.format(grid=1, block=1)})")
        assert machine.held(process)["module"] == 2 * UNIT
        process.run("other = ok(d.cuCtxCreate(None, 0, dev)); f = d.CUfunction(int(kernel))")
        process.run(f"ok({LAUNCH.format(grid=1, block=1)})")
        assert machine.held(process)["module"] == 4 * UNIT
        process.run("ok(d.cuCtxDestroy(other))")
        assert machine.held(process)["module"] == 2 * UNIT
        process.run("ok(d.cuLibraryUnload(library))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_linked_ptx_can_be_loaded(machine: Machine) -> None:
    with machine.user() as process:
        process.run(
            "link = ok(d.cuLinkCreate(0, None, None))\n"
            f"text = {PTX.encode()!r}\n"
            "kind = d.CUjitInputType.CU_JIT_INPUT_PTX\n"
            "ok(d.cuLinkAddData(link, kind, text, len(text), b'name', 0, None, None))\n"
            "image, size = ok(d.cuLinkComplete(link)); module = ok(d.cuModuleLoadData(image))\n"
        )
        assert process.run("ok(d.cuModuleGetFunctionCount(module))") == 2


def test_occupancy_and_the_best_block(machine: Machine) -> None:
    with machine.user() as process:
        process.run(LOAD)
        process.run("f = ok(d.cuModuleGetFunction(module, b'first'))")
        assert process.run("ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 128, 0))") == 8
        assert process.run("ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 128, 32768))") == 2
        assert process.run("ok(d.cuOccupancyMaxPotentialBlockSize(f, 0, 0, 0))") == [40, 1024]
        assert process.run("ok(d.cuFuncIsLoaded(f)).value") == 0
        process.run("ok(d.cuFuncLoad(f))")
        assert process.run("ok(d.cuFuncIsLoaded(f)).value") == 1
