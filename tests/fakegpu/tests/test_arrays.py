"""Arrays: their real sizes, data, levels, and memory mapped into those without any of their own."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, Process, make_machine

BLOCK = 65536
FLOAT = "d.CUarray_format.CU_AD_FORMAT_FLOAT"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def describe(process: Process, width: int, height: int = 0, depth: int = 0, flags: int = 0) -> None:
    process.run(
        f"shape = d.CUDA_ARRAY3D_DESCRIPTOR(); shape.Width, shape.Height, shape.Depth = {width}, {height}, {depth}\n"
        f"shape.Format, shape.NumChannels, shape.Flags = {FLOAT}, 1, {flags}\n"
    )


def array_bytes(machine: Machine, process: Process) -> int:
    return machine.held(process).get("array", 0)


@pytest.mark.parametrize(
    ("shape", "bytes_taken"),
    [
        ((100, 0, 0), BLOCK),
        ((16384, 0, 0), BLOCK),
        ((16385, 0, 0), 2 * BLOCK),
        ((1000, 1000, 0), 4032 * 1000 // BLOCK * BLOCK + BLOCK),
        ((64, 64, 64), 64 * 4 * 64 * 64),
    ],
)
def test_an_array_takes_what_its_tiles_need(machine: Machine, shape: tuple[int, int, int], bytes_taken: int) -> None:
    with machine.user() as process:
        describe(process, *shape)
        process.run("array = ok(d.cuArray3DCreate(shape))")
        assert array_bytes(machine, process) == bytes_taken
        describe(process, *shape, flags=0x80)
        process.run("twin = ok(d.cuArray3DCreate(shape))")
        assert process.run("ok(d.cuArrayGetMemoryRequirements(twin, dev)).size") == bytes_taken
        assert process.run("code(d.cuArrayGetMemoryRequirements(array, dev))") == "INVALID_VALUE"
        process.run("ok(d.cuArrayDestroy(array)); ok(d.cuArrayDestroy(twin))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_data_goes_in_and_out(machine: Machine) -> None:
    with machine.user() as process:
        process.run(
            "flat = d.CUDA_ARRAY_DESCRIPTOR(); flat.Width, flat.Height = 16, 8\n"
            f"flat.Format, flat.NumChannels = {FLOAT}, 1\n"
            "array = ok(d.cuArrayCreate(flat))\n"
            "copy = d.CUDA_MEMCPY2D(); data = bytes(range(256)) * 2\n"
            "copy.srcMemoryType, copy.srcHost = d.CUmemorytype.CU_MEMORYTYPE_HOST, data\n"
            "copy.srcPitch = 64\n"
            "copy.dstMemoryType, copy.dstArray = d.CUmemorytype.CU_MEMORYTYPE_ARRAY, array\n"
            "copy.WidthInBytes, copy.Height = 64, 8\n"
            "ok(d.cuMemcpy2D(copy)); out = bytearray(64); ok(d.cuMemcpyAtoH(out, array, 0, 64))\n"
        )
        assert process.run("out == data[:64]")
        process.run("copy.WidthInBytes = 65")
        assert process.run("code(d.cuMemcpy2D(copy))") == "INVALID_VALUE"


def test_mipmapped_arrays_have_levels_in_one_allocation(machine: Machine) -> None:
    with machine.user() as process:
        describe(process, 1024, 1024)
        process.run("mipmap = ok(d.cuMipmappedArrayCreate(shape, 3))")
        assert array_bytes(machine, process) == 4 * MIB + MIB + MIB // 4
        process.run("level = ok(d.cuMipmappedArrayGetLevel(mipmap, 2))")
        assert process.run("ok(d.cuArray3DGetDescriptor(level)).Width") == 256
        assert process.run("code(d.cuArrayDestroy(level)), code(d.cuMipmappedArrayGetLevel(mipmap, 3))") == [
            "INVALID_HANDLE",
            "INVALID_VALUE",
        ]
        process.run("ok(d.cuMipmappedArrayDestroy(mipmap))")
        assert array_bytes(machine, process) == 0


def test_memory_mapped_into_a_sparse_array_lives_as_long_as_it_is_mapped(machine: Machine) -> None:
    with machine.user() as process:
        describe(process, 1024, 1024, flags=0x40)
        process.run(
            "array = ok(d.cuArray3DCreate(shape)); stream = ok(d.cuStreamCreate(0))\n"
            "prop = d.CUmemAllocationProp(); prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
            "prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
            "h = ok(d.cuMemCreate(2 << 20, prop, 0))\n"
            "info = d.CUarrayMapInfo(); info.resourceType = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY\n"
            "info.resource.array = array\n"
            "info.subresourceType = d.CUarraySparseSubresourceType.CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL\n"
            "tile = ok(d.cuArrayGetSparseProperties(array)).tileExtent\n"
            "info.subresource.sparseLevel.extentWidth = tile.width\n"
            "info.subresource.sparseLevel.extentHeight = tile.height\n"
            "info.subresource.sparseLevel.extentDepth = 1\n"
            "info.memOperationType = d.CUmemOperationType.CU_MEM_OPERATION_TYPE_MAP\n"
            "info.memHandle.memHandle = h; info.deviceBitMask = 1\n"
        )
        assert process.run("tile.width * tile.height * 4") == BLOCK
        assert machine.held(process) == {"context": CONTEXT_BYTES, "virtual": 2 * MIB}
        process.run("ok(d.cuMemMapArrayAsync([info], 1, stream)); ok(d.cuMemRelease(h))")
        assert machine.held(process)["virtual"] == 2 * MIB
        process.run("info.memOperationType = d.CUmemOperationType.CU_MEM_OPERATION_TYPE_UNMAP")
        process.run("ok(d.cuMemMapArrayAsync([info], 1, stream))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_arrays_end_with_their_context(machine: Machine) -> None:
    with machine.user() as process:
        process.run("other = ok(d.cuCtxCreate(None, 0, dev))")
        describe(process, 1024, 1024)
        process.run("array = ok(d.cuArray3DCreate(shape)); mipmap = ok(d.cuMipmappedArrayCreate(shape, 3))")
        process.run("ok(d.cuCtxDestroy(other))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_levels_end_once(machine: Machine) -> None:
    with machine.user() as process:
        describe(process, 1024, 1024)
        for _ in range(3):
            process.run("other = ok(d.cuCtxCreate(None, 0, dev))")
            process.run(
                "made = [ok(d.cuMipmappedArrayCreate(shape, 3)) for _ in range(3)], ok(d.cuArray3DCreate(shape))"
            )
            process.run("ok(d.cuMipmappedArrayDestroy(made[0][1])); ok(d.cuCtxDestroy(other))")
        process.run("arrays = [ok(d.cuArray3DCreate(shape)) for _ in range(20)]")
        assert process.run("len({int(array) for array in arrays})") == 20
        process.run("[ok(d.cuArrayDestroy(array)) for array in arrays]")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_a_full_card_refuses_arrays(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - (2 << 20)))")
        describe(process, 1024, 1024)
        assert process.run("code(d.cuArray3DCreate(shape)), code(d.cuMipmappedArrayCreate(shape, 2))") == [
            "OUT_OF_MEMORY",
            "OUT_OF_MEMORY",
        ]
        assert array_bytes(machine, process) == 0
