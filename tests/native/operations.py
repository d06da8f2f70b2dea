"""Ways to take and give back GPU memory, for a client: each knows objects by number and returns the driver's answer.

An answer is the name of the result without its prefix. An object is noted under its number only if it was made.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as d
from tests.fakegpu.client import code, ok

PTX = (
    "// generated\n.version 8.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .b8 table[{bytes}];\n.visible .entry first()\n{{ ret; }}\n"
)

objects: dict[int, Any] = {}
contexts: dict[int, Any] = {}
_DEVICE = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE


def start() -> str:
    return code(d.cuInit(0))


def _note(number: int, answer: tuple[Any, ...]) -> str:
    if int(answer[0]) == 0:
        objects[number] = answer[1] if len(answer) == 2 else answer[1:]
    return code(answer)


def _drop(number: int, answer: tuple[Any, ...]) -> str:
    if int(answer[0]) == 0:
        del objects[number]
    return code(answer)


# Contexts.


def make_context(number: int, device: int) -> str:
    answer = d.cuCtxCreate(None, 0, device)
    if int(answer[0]) == 0:
        contexts[number] = answer[1]
    return code(answer)


def retain_primary(number: int, device: int) -> str:
    answer = d.cuDevicePrimaryCtxRetain(device)
    if int(answer[0]) == 0:
        contexts[number] = answer[1]
    return code(answer)


def release_primary(number: int, device: int) -> str:
    del contexts[number]
    return code(d.cuDevicePrimaryCtxRelease(device))


def reset_primary(device: int) -> str:
    return code(d.cuDevicePrimaryCtxReset(device))


def end_context(number: int) -> str:
    return code(d.cuCtxDestroy(contexts.pop(number)))


def make_green(number: int, device: int) -> str:
    """A green context of all multiprocessors; what is made current is what the driver makes of it."""
    all_of_it = ok(d.cuDeviceGetDevResource(device, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    description = ok(d.cuDevResourceGenerateDesc([all_of_it], 1))
    flags = d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value
    answer = _note(number, d.cuGreenCtxCreate(description, device, flags))
    if answer == "SUCCESS":
        contexts[number] = ok(d.cuCtxFromGreenCtx(objects[number]))
    return answer


def end_green(number: int) -> str:
    del contexts[number]
    return _drop(number, d.cuGreenCtxDestroy(objects[number]))


def set_heap(size: int) -> str:
    """The memory of the current context from which kernels allocate."""
    return code(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, size))


def use(number: int) -> None:
    """Make a context current in this thread."""
    ok(d.cuCtxSetCurrent(contexts[number]))


def info() -> tuple[int, int]:
    """Free and total bytes of the current context's device."""
    free, total = ok(d.cuMemGetInfo())
    return free, total


# In the current context.


def take(number: int, size: int) -> str:
    return _note(number, d.cuMemAlloc(size))


def take_pitch(number: int, width: int, height: int) -> str:
    answer = d.cuMemAllocPitch(width, height, 4)
    return _note(number, answer[:2])


def take_managed(number: int, size: int) -> str:
    return _note(number, d.cuMemAllocManaged(size, 1))


def touch(number: int) -> str:
    return code(d.cuMemsetD8(objects[number], 1, 1))


def free(number: int) -> str:
    return _drop(number, d.cuMemFree(objects[number]))


def take_array(number: int, width: int, height: int, depth: int, levels: int) -> str:
    shape = d.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels = width, height, depth, 2
    shape.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
    if levels:
        return _note(number, d.cuMipmappedArrayCreate(shape, levels))
    return _note(number, d.cuArray3DCreate(shape))


def free_array(number: int) -> str:
    array = objects[number]
    destroy = d.cuMipmappedArrayDestroy if isinstance(array, d.CUmipmappedArray) else d.cuArrayDestroy
    return _drop(number, destroy(array))


def load(number: int, size: int) -> str:
    return _note(number, d.cuModuleLoadData(PTX.format(bytes=size).encode() + bytes(1)))


def launch(number: int) -> str:
    function = ok(d.cuModuleGetFunction(objects[number], b"first"))
    return code(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))


def unload(number: int) -> str:
    return _drop(number, d.cuModuleUnload(objects[number]))


# Stream-ordered, on the default stream.


def _pool_props(device: int) -> Any:
    props = d.CUmemPoolProps()
    props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = _DEVICE
    props.location.id = device
    return props


def make_pool(number: int, device: int, keep: bool) -> str:
    answer = d.cuMemPoolCreate(_pool_props(device))
    if int(answer[0]) == 0 and keep:
        all_of_it = d.cuuint64_t(1 << 40)
        threshold = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        ok(d.cuMemPoolSetAttribute(answer[1], threshold, all_of_it))
    return _note(number, answer)


def trim_pool(number: int) -> str:
    return code(d.cuMemPoolTrimTo(objects[number], 0))


def end_pool(number: int) -> str:
    return _drop(number, d.cuMemPoolDestroy(objects[number]))


def take_ordered(number: int, size: int) -> str:
    return _note(number, d.cuMemAllocAsync(size, 0))


def take_from(number: int, size: int, pool: int) -> str:
    return _note(number, d.cuMemAllocFromPoolAsync(size, objects[pool], 0))


def take_from_default(number: int, size: int, device: int) -> str:
    """From a device's default pool, on the default stream of whichever context is current."""
    return _note(number, d.cuMemAllocFromPoolAsync(size, ok(d.cuDeviceGetDefaultMemPool(device)), 0))


def free_ordered(number: int) -> str:
    return _drop(number, d.cuMemFreeAsync(objects[number], 0))


def wait() -> str:
    return code(d.cuCtxSynchronize())


# Memory by handle.

_LIBC = ctypes.CDLL(None)
_PIDFD_GETFD = 438
_FILE = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def _physical(device: int, shared: bool = False) -> Any:
    prop = d.CUmemAllocationProp()
    prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = _DEVICE
    prop.location.id = device
    if shared:
        prop.requestedHandleTypes = _FILE
    return prop


def create(number: int, size: int, device: int, shared: bool = False) -> str:
    return _note(number, d.cuMemCreate(size, _physical(device, shared), 0))


def export(number: int, handle: int) -> int:
    """A descriptor of memory that was created to be shared."""
    objects[number] = ok(d.cuMemExportToShareableHandle(objects[handle], _FILE, 0))
    return int(objects[number])


def end_export(number: int) -> str:
    os.close(objects.pop(number))
    return "SUCCESS"


def import_from(number: int, process: int, descriptor: int) -> str:
    """Memory that another process, or this one, has exported."""
    holder = os.pidfd_open(process)
    passed = _LIBC.syscall(_PIDFD_GETFD, holder, descriptor, 0)
    try:
        return _note(number, d.cuMemImportFromShareableHandle(passed, _FILE))
    finally:
        os.close(holder)
        os.close(passed)


# Multicast objects.


def make_multicast(number: int, size: int, devices: int) -> str:
    props = d.CUmulticastObjectProp()
    props.numDevices, props.size = devices, size
    answer = _note(number, d.cuMulticastCreate(props))
    for device in range(devices if answer == "SUCCESS" else 0):
        ok(d.cuMulticastAddDevice(objects[number], device))
    return answer


def bind(multicast: int, offset: int, handle: int, size: int) -> str:
    return code(d.cuMulticastBindMem(objects[multicast], offset, objects[handle], 0, size, 0))


def bind_mapping(multicast: int, offset: int, mapping: int) -> str:
    address, size = objects[mapping]
    return code(d.cuMulticastBindAddr(objects[multicast], offset, address, size, 0))


def unbind(multicast: int, device: int, offset: int, size: int) -> str:
    return code(d.cuMulticastUnbind(objects[multicast], device, offset, size))


# Arrays whose tiles are mapped one by one.


def take_sparse(number: int, tiles: int, levels: int) -> str:
    """An array of so many tiles squared."""
    shape = d.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width = shape.Height = 128 * tiles
    shape.NumChannels, shape.Format = 4, d.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    shape.Flags = d.CUDA_ARRAY3D_SPARSE
    if levels:
        return _note(number, d.cuMipmappedArrayCreate(shape, levels))
    return _note(number, d.cuArray3DCreate(shape))


def create_tile_pool(number: int, size: int, device: int) -> str:
    prop = _physical(device)
    prop.allocFlags.usage = 1  # CU_MEM_CREATE_USAGE_TILE_POOL
    return _note(number, d.cuMemCreate(size, prop, 0))


def map_tile(array: int, x: int, y: int, pool: int | None) -> str:
    """Map a tile of an array to the memory of a pool, or unmap it."""
    whole = objects[array]
    info = d.CUarrayMapInfo()
    if isinstance(whole, d.CUmipmappedArray):
        info.resourceType = d.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
        info.resource.mipmap = whole
        tile = ok(d.cuMipmappedArrayGetSparseProperties(whole)).tileExtent
    else:
        info.resourceType = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        info.resource.array = whole
        tile = ok(d.cuArrayGetSparseProperties(whole)).tileExtent
    info.subresourceType = d.CUarraySparseSubresourceType.CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL
    level = info.subresource.sparseLevel
    level.offsetX, level.offsetY = x * tile.width, y * tile.height
    level.extentWidth, level.extentHeight, level.extentDepth = tile.width, tile.height, 1
    operations = d.CUmemOperationType
    info.memOperationType = operations.CU_MEM_OPERATION_TYPE_MAP if pool else operations.CU_MEM_OPERATION_TYPE_UNMAP
    info.memHandleType = d.CUmemHandleType.CU_MEM_HANDLE_TYPE_GENERIC
    if pool:
        info.memHandle.memHandle = objects[pool]
    info.deviceBitMask = 1
    return code(d.cuMemMapArrayAsync([info], 1, 0))


def release(number: int) -> str:
    return _drop(number, d.cuMemRelease(objects[number]))


def map_handle(number: int, handle: int, size: int) -> str:
    """Map a handle whole at an address of its own."""
    address = ok(d.cuMemAddressReserve(size, 0, 0, 0))
    answer = d.cuMemMap(address, size, 0, objects[handle], 0)
    return _note(number, (*answer, (int(address), size)))


def retain(number: int, mapping: int) -> str:
    return _note(number, d.cuMemRetainAllocationHandle(objects[mapping][0]))


def unmap(number: int) -> str:
    return _drop(number, d.cuMemUnmap(*objects[number]))


# Graphs.


def make_graph(number: int, sizes: list[int], freed: bool) -> str:
    """An executable graph that allocates these sizes and, within the graph, frees them."""
    stream = ok(d.cuStreamCreate(1))
    ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    pointers = [ok(d.cuMemAllocAsync(size, stream)) for size in sizes]
    if freed:
        for pointer in pointers:
            ok(d.cuMemFreeAsync(pointer, stream))
    graph = ok(d.cuStreamEndCapture(stream))
    return _note(number, (*d.cuGraphInstantiate(graph, 0), [] if freed else pointers, graph))


def launch_graph(number: int) -> str:
    """Launch it, and free what it leaves allocated."""
    executable, left, _ = objects[number]
    answer = code(d.cuGraphLaunch(executable, 0))
    if answer == "SUCCESS":
        for pointer in left:
            ok(d.cuMemFreeAsync(pointer, 0))
        ok(d.cuCtxSynchronize())
    return answer


def end_graph(number: int) -> str:
    executable, _, graph = objects[number]
    ok(d.cuGraphDestroy(graph))
    return _drop(number, d.cuGraphExecDestroy(executable))


def trim_graphs(device: int) -> str:
    return code(d.cuDeviceGraphMemTrim(device))


# Processes.


def in_child(ask: Callable[[], str]) -> str:
    """What a child of fork gets for a call."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, ask().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as answers:
        return answers.read().decode()


def child_takes() -> str:
    return in_child(lambda: code(d.cuMemAlloc(1 << 20)))


def leave_a_child() -> int:
    """A child that sleeps on; its PID."""
    child = os.fork()
    if child == 0:
        os.execvp("sleep", ["sleep", "600"])
    return child


def share_handle(number: int) -> str:
    """Content of an IPC handle for a block, in hexadecimal."""
    return ctypes.string_at(ok(d.cuIpcGetMemHandle(objects[number])).getPtr(), 64).hex()


def open_handle(number: int, content: str) -> str:
    handle = d.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(content), 64)
    return _note(number, d.cuIpcOpenMemHandle(handle, 1))


def close_handle(number: int) -> str:
    return _drop(number, d.cuIpcCloseMemHandle(objects[number]))


# Many at once.


def churn(threads: int, allocations: int, seed: int) -> list[int]:
    """So many allocations in each of so many threads, of every kind at random, and all given back; granted, refused.

    Context n belongs to device n - 1, and the threads use them in turn.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(_churn_in_thread, [allocations] * threads, range(seed, seed + threads)))
    return [sum(column) for column in zip(*done, strict=True)]


def _churn_in_thread(allocations: int, seed: int) -> tuple[int, int]:
    import random

    chance = random.Random(seed)
    device = seed % len(contexts)
    use(device + 1)
    pool = ok(d.cuMemPoolCreate(_pool_props(device)))
    shape = d.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 256, 256, 4
    shape.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
    physical = _physical(device)
    kinds: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (lambda: d.cuMemAlloc(chance.randrange(1, 8 << 20)), d.cuMemFree),
        (lambda: d.cuMemAlloc(chance.randrange(1, 64 << 20)), lambda block: d.cuMemFreeAsync(block, 0)),
        (lambda: d.cuMemAllocPitch(chance.randrange(1, 4000), 100, 4)[:2], d.cuMemFree),
        (lambda: d.cuMemAllocManaged(chance.randrange(1, 8 << 20), 1), d.cuMemFree),
        (lambda: d.cuMemAllocAsync(chance.randrange(1, 8 << 20), 0), lambda block: d.cuMemFreeAsync(block, 0)),
        (lambda: d.cuMemAllocFromPoolAsync(chance.randrange(1, 8 << 20), pool, 0), d.cuMemFree),
        (lambda: d.cuMemCreate(2 << 20, physical, 0), d.cuMemRelease),
        (lambda: d.cuArrayCreate(shape), d.cuArrayDestroy),
    ]
    held: list[tuple[Callable[[Any], Any], Any]] = []
    granted = refused = 0
    while granted < allocations:
        if len(held) < 60 and (not held or chance.random() < 0.6):
            take_one, give_one = chance.choice(kinds)
            answer = take_one()
            if int(answer[0]) == 0:
                held.append((give_one, answer[1]))
                granted += 1
                continue
            if code(answer) != "OUT_OF_MEMORY":
                raise RuntimeError(code(answer))
            refused += 1
        if held:
            give_one, block = held.pop(chance.randrange(len(held)))
            ok(give_one(block))
    for give_one, block in held:
        ok(give_one(block))
    ok(d.cuCtxSynchronize())
    ok(d.cuMemPoolDestroy(pool))
    return granted, refused
