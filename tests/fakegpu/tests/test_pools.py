"""Stream-ordered memory: pools reserve, keep, shrink unseen, and outlive their handle."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, make_machine

GROWTH = 32 * MIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def attribute(name: str) -> str:
    return f"int(ok(d.cuMemPoolGetAttribute(pool, d.CUmemPool_attribute.CU_MEMPOOL_ATTR_{name})))"


DEFAULT_POOL = "pool = ok(d.cuDeviceGetDefaultMemPool(dev)); stream = ok(d.cuStreamCreate(0))"
OWN_POOL = (
    "props = d.CUmemPoolProps()\n"
    "props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
    "props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
    "props.location.id = 0\n"
    "pool = ok(d.cuMemPoolCreate(props)); stream = ok(d.cuStreamCreate(0))\n"
)


def pool_bytes(machine: Machine, process: object) -> int:
    return machine.held(process).get("pool", 0)  # type: ignore[arg-type]


def test_a_pool_reserves_in_steps_and_counts_what_is_used(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        process.run("p = ok(d.cuMemAllocAsync(1000, stream))")
        assert process.run(f"{attribute('USED_MEM_CURRENT')}, {attribute('RESERVED_MEM_CURRENT')}") == [1024, GROWTH]
        assert machine.held(process) == {"context": CONTEXT_BYTES, "pool": GROWTH}
        process.run("q = ok(d.cuMemAllocAsync(40 << 20, stream))")
        assert process.run(attribute("RESERVED_MEM_CURRENT")) == 2 * GROWTH


def test_freed_memory_stays_until_the_program_waits(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        process.run("ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(100 << 20, stream)), stream))")
        assert process.run(attribute("USED_MEM_CURRENT")) == 0
        assert pool_bytes(machine, process) == 4 * GROWTH
        process.run("ok(d.cuStreamSynchronize(stream))")
        assert pool_bytes(machine, process) == 0
        assert process.run(attribute("RESERVED_MEM_HIGH")) == 4 * GROWTH


def test_the_release_threshold_is_kept(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        threshold = "d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD"
        process.run(f"ok(d.cuMemPoolSetAttribute(pool, {threshold}, d.cuuint64_t(48 << 20)))")
        process.run("ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(100 << 20, stream)), stream))")
        process.run("ok(d.cuCtxSynchronize())")
        assert pool_bytes(machine, process) == 48 * MIB
        process.run("ok(d.cuMemPoolTrimTo(pool, 10 << 20))")
        assert pool_bytes(machine, process) == 10 * MIB
        process.run("ok(d.cuMemPoolTrimTo(pool, 0))")
        assert pool_bytes(machine, process) == 0


def test_cached_memory_serves_the_next_allocation(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        process.run("for _ in range(100): ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(30 << 20, stream)), stream))")
        assert pool_bytes(machine, process) == GROWTH


def test_memory_of_a_pool_may_be_freed_by_cumemfree(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        process.run("p = ok(d.cuMemAllocAsync(100, stream))")
        assert process.run("code(d.cuMemFree(p)), code(d.cuMemFree(p)), code(d.cuMemFreeAsync(p, stream))") == [
            "SUCCESS",
            "INVALID_VALUE",
            "INVALID_VALUE",
        ]


def test_memory_of_cumemalloc_may_be_freed_in_a_stream(machine: Machine) -> None:
    with machine.user() as process:
        process.run("stream = ok(d.cuStreamCreate(0)); p = ok(d.cuMemAlloc(4 << 20))")
        assert process.run("code(d.cuMemFreeAsync(p, stream))") == "SUCCESS"
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_a_destroyed_pool_lives_until_its_memory_is_freed(machine: Machine) -> None:
    with machine.user() as process:
        process.run(OWN_POOL)
        process.run("p = ok(d.cuMemAllocFromPoolAsync(10 << 20, pool, stream)); ok(d.cuMemPoolDestroy(pool))")
        assert pool_bytes(machine, process) == GROWTH
        assert process.run("code(d.cuMemAllocFromPoolAsync(1, pool, stream))") == "INVALID_VALUE"
        process.run("ok(d.cuMemFreeAsync(p, stream))")
        assert pool_bytes(machine, process) == 0


def test_the_default_pool_cannot_be_destroyed(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        assert process.run("code(d.cuMemPoolDestroy(pool))") == "NOT_SUPPORTED"


def test_the_current_pool_of_a_device_serves_cumemallocasync(machine: Machine) -> None:
    with machine.user() as process:
        process.run(OWN_POOL)
        process.run("ok(d.cuDeviceSetMemPool(dev, pool)); p = ok(d.cuMemAllocAsync(1000, stream))")
        assert process.run(attribute("USED_MEM_CURRENT")) == 1024
        handle = "d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE"
        assert process.run(f"int(ok(d.cuPointerGetAttribute({handle}, p))) == int(pool)")


def test_a_pool_grows_by_less_where_there_is_not_enough(machine: Machine) -> None:
    with machine.user() as process:
        process.run(DEFAULT_POOL)
        process.run("q = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - (4 << 20)))")
        assert process.run("code(d.cuMemAllocAsync(3 << 20, stream))") == "SUCCESS"
        assert process.run("code(d.cuMemAllocAsync(2 << 20, stream))") == "OUT_OF_MEMORY"


def test_a_pool_with_a_largest_size_stops_there(machine: Machine) -> None:
    with machine.user() as process:
        process.run(OWN_POOL.replace("pool =", "props.maxSize = 40 << 20\npool ="))
        process.run("p = ok(d.cuMemAllocFromPoolAsync(38 << 20, pool, stream))")
        assert process.run("code(d.cuMemAllocFromPoolAsync(4 << 20, pool, stream))") == "OUT_OF_MEMORY"


def test_pools_end_with_the_primary_context(machine: Machine) -> None:
    with machine.user() as process:
        process.run(OWN_POOL)
        process.run("p = ok(d.cuMemAllocFromPoolAsync(10 << 20, pool, stream)), ok(d.cuMemAllocAsync(9, stream))")
        process.run("ok(d.cuDevicePrimaryCtxReset(dev))")
        assert machine.held(process) == {}


def test_a_pool_for_other_processes_is_charged_to_its_maker(machine: Machine) -> None:
    fd = "d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
    with machine.user() as maker, machine.user() as other:
        maker.run(OWN_POOL.replace("pool =", f"props.handleTypes = {fd}\npool ="))
        maker.run("p = ok(d.cuMemAllocFromPoolAsync(5 << 20, pool, stream)); ok(d.cuMemsetD8(p, 8, 5 << 20))")
        maker.run(f"import ctypes; fd = ok(d.cuMemPoolExportToShareableHandle(pool, {fd}, 0))")
        content = maker.run("ctypes.string_at(ok(d.cuMemPoolExportPointer(p)).getPtr(), 64).hex()")
        other.run(f"import os; fd = os.open('/proc/{maker.popen.pid}/fd/{maker.run('fd')}', os.O_RDWR)")
        other.run(
            "import ctypes\n"
            f"pool = ok(d.cuMemPoolImportFromShareableHandle(fd, {fd}, 0)); stream = ok(d.cuStreamCreate(0))\n"
            "data = d.CUmemPoolPtrExportData()\n"
            f"ctypes.memmove(data.getPtr(), bytes.fromhex('{content}'), 64)\n"
            "q = ok(d.cuMemPoolImportPointer(pool, data)); out = bytearray(5 << 20)\n"
            "ok(d.cuMemcpyDtoH(out, q, 5 << 20))\n"
        )
        assert other.run("out == bytes([8]) * (5 << 20)")
        assert other.run("code(d.cuMemAllocFromPoolAsync(1, pool, stream))") == "INVALID_VALUE"
        assert machine.held(other) == {"context": CONTEXT_BYTES}
        assert pool_bytes(machine, maker) == GROWTH
        assert machine.used_mib() == 232
        other.run("ok(d.cuMemFreeAsync(q, stream)); ok(d.cuMemPoolDestroy(pool))")
        maker.run("ok(d.cuMemFreeAsync(p, stream)); ok(d.cuStreamSynchronize(stream)); ok(d.cuMemPoolDestroy(pool))")
        assert machine.used_mib() == 200


def test_only_a_pool_made_for_it_can_be_handed_on(machine: Machine) -> None:
    fd = "d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"
    with machine.user() as process:
        process.run(OWN_POOL)
        process.run("p = ok(d.cuMemAllocFromPoolAsync(100, pool, stream))")
        assert process.run(f"code(d.cuMemPoolExportToShareableHandle(pool, {fd}, 0))") == "INVALID_VALUE"
        assert process.run("code(d.cuMemPoolExportPointer(p))") == "INVALID_VALUE"
