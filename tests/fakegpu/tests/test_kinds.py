"""Other kinds of memory: pitched, managed, page-locked, and that of the first ABI."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, make_machine

ATTRIBUTE = "d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


@pytest.mark.parametrize(("width", "pitch"), [(1, 512), (512, 512), (513, 1024), (4000, 4096)])
def test_rows_start_at_multiples_of_512_bytes(machine: Machine, width: int, pitch: int) -> None:
    with machine.user() as process:
        process.run(f"p, pitch = ok(d.cuMemAllocPitch({width}, 4096, 4))")
        assert process.run("pitch, ok(d.cuMemGetAddressRange(p))[1]") == [pitch, pitch * 4096]
        assert machine.held(process)["linear"] == pitch * 4096
        assert process.run("code(d.cuMemAllocPitch(1, 1, 5)), code(d.cuMemAllocPitch(1 << 40, 1 << 40, 4))") == [
            "INVALID_VALUE",
            "OUT_OF_MEMORY",
        ]


def test_managed_memory_comes_to_the_device_when_the_device_uses_it(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAllocManaged(100 << 20, 1)); stream = ok(d.cuStreamCreate(0))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("ok(d.cuMemsetD8(p, 1, 1000))")
        assert machine.held(process)["managed"] == 100 * MIB
        process.run("host = d.CUmemLocation(); host.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST")
        process.run("ok(d.cuMemPrefetchAsync(p, 100 << 20, host, 0, stream))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("here = d.CUmemLocation(); here.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE")
        process.run("ok(d.cuMemPrefetchAsync(p, 100 << 20, here, 0, stream))")
        assert machine.held(process)["managed"] == 100 * MIB
        assert process.run(f"ok(d.cuPointerGetAttribute({ATTRIBUTE}IS_MANAGED, p))") == 1
        process.run("ok(d.cuMemFree(p))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_managed_memory_may_be_more_than_the_card_has(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAllocManaged(20 << 30, 1)); ok(d.cuMemsetD8(p, 1, 1000))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_page_locked_memory_costs_the_device_nothing(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemHostAlloc(10 << 20, 2)); q = int(ok(d.cuMemHostGetDevicePointer(p, 0)))")
        process.run("ok(d.cuMemsetD8(q, 3, 100)); out = bytearray(100); ok(d.cuMemcpyDtoH(out, q, 100))")
        assert process.run("out == bytes([3]) * 100")
        assert process.run(f"ok(d.cuPointerGetAttribute({ATTRIBUTE}MEMORY_TYPE, q))") == 1
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        assert process.run("code(d.cuMemFree(q)), code(d.cuMemFreeHost(p)), code(d.cuMemFreeHost(p))") == [
            "INVALID_VALUE",
            "SUCCESS",
            "INVALID_VALUE",
        ]


def test_registered_memory(machine: Machine) -> None:
    with machine.user() as process:
        process.run("import ctypes; buffer = ctypes.create_string_buffer(8192); p = ctypes.addressof(buffer)")
        assert process.run("code(d.cuMemHostRegister(p, 8192, 0)), code(d.cuMemHostRegister(p + 1, 1, 0))") == [
            "SUCCESS",
            "HOST_MEMORY_ALREADY_REGISTERED",
        ]
        assert process.run("code(d.cuMemHostUnregister(p)), code(d.cuMemHostUnregister(p))") == [
            "SUCCESS",
            "HOST_MEMORY_NOT_REGISTERED",
        ]


FIRST_ABI = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint(0)
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc(ctypes.byref(p), 3 << 20) == 0 and 0 < p.value < 1 << 32
data, out = bytes(range(256)), ctypes.create_string_buffer(256)
assert cuda.cuMemcpyHtoD(p, data, 256) == 0 and cuda.cuMemcpyDtoH(out, p, 256) == 0 and out.raw == data
free, total = ctypes.c_uint(), ctypes.c_uint()
assert cuda.cuMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0 and total.value == (1 << 32) - 1
free64, total64 = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free64), ctypes.byref(total64)) == 0
print(total64.value - free64.value)
assert cuda.cuMemFree(p) == 0 and cuda.cuMemFree(p) == 1
assert cuda.cuMemGetInfo_v2(ctypes.byref(free64), ctypes.byref(total64)) == 0
print(total64.value - free64.value)
"""


def test_the_first_abi_has_addresses_of_32_bits(machine: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_ABI], env=machine.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(CONTEXT_BYTES + 4 * MIB), str(CONTEXT_BYTES)]


def test_streams_and_events(machine: Machine) -> None:
    with machine.user() as process:
        process.run("stream = ok(d.cuStreamCreateWithPriority(1, -9)); event = ok(d.cuEventCreate(0))")
        assert process.run("ok(d.cuStreamGetPriority(stream)), ok(d.cuStreamGetFlags(stream))") == [-5, 1]
        assert process.run("int(ok(d.cuStreamGetCtx(stream))) == int(ctx)")
        process.run("last = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(event, stream))")
        process.run("ok(d.cuEventRecord(last, stream)); ok(d.cuEventSynchronize(last))")
        assert process.run("ok(d.cuEventElapsedTime(event, last)) >= 0")
        assert process.run("code(d.cuStreamDestroy(0)), code(d.cuStreamDestroy(stream))") == [
            "INVALID_VALUE",
            "SUCCESS",
        ]
        assert process.run("code(d.cuStreamSynchronize(stream))") == "INVALID_HANDLE"


def test_callbacks_run_and_may_call_the_driver(machine: Machine) -> None:
    with machine.user() as process:
        process.run(
            "import ctypes\n"
            "seen = []\n"
            "@ctypes.CFUNCTYPE(None, ctypes.c_void_p)\n"
            "def call(data): seen.append((data, code(d.cuDeviceGetCount())))\n"
            "stream = ok(d.cuStreamCreate(0))\n"
            "ok(d.cuLaunchHostFunc(stream, d.CUhostFn(ctypes.cast(call, ctypes.c_void_p).value), 77))\n"
        )
        assert process.run("seen") == [[77, "SUCCESS"]]
