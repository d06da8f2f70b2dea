/* Memory by handle: cuMemCreate, and all that keeps such memory alive. The driver frees it when no handle, no mapping, no sparse
 * array and no multicast binding refers to it any more, and so long it is charged. What another process keeps alive through an
 * exported handle after that cannot be seen from here. */
#include "virtual.h"

#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "mappings.h"

/* The kind of a handle's record: a multicast object keeps what is bound to it, and an imported handle may be of one. */
enum { HANDLE_MEMORY, HANDLE_MULTICAST, HANDLE_IMPORTED };

static struct records *handles(void)
{
    return &process->holdings.handles;
}

static void unrefer_all(uint64_t space, uint64_t start, uint64_t length);

/* The last reference to a handle is gone. */
static void ended(const struct record *record)
{
    charge_give_back(&(struct charge){{record->device, NULL}, CHARGE_DATA, record->bytes});
    if (record->kind != HANDLE_MEMORY)
        unrefer_all(record->key, 0, UINT64_MAX);
}

static void unrefer(uint64_t handle)
{
    struct record record;
    if (records_refer(handles(), handle, -1, &record) && record.owner == 0)
        ended(&record);
}

static void unrefer_all(uint64_t space, uint64_t start, uint64_t length)
{
    struct mapping mapping;
    while (mappings_take(&process->holdings.mappings, space, start, length, &mapping))
        unrefer(mapping.handle);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct payer payer;
    struct charge charge;
    if (!prop)
        return cuda.cuMemCreate(handle, size, prop, flags);
    CUresult result = charge_location(prop->location, &payer);
    if (result == CUDA_SUCCESS)
        result = charge_take(&charge, payer, CHARGE_DATA, size);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemCreate(handle, size, prop, flags);
    if (result == CUDA_SUCCESS && payer.device != DEVICE_NONE &&
        !records_add(handles(), (struct record){.key = *handle, .bytes = size, .device = payer.device, .owner = 1})) {
        cuda.cuMemRelease(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        charge_give_back(&charge);
    return result;
}

/* The last reference goes before the driver's answer, since another thread may be given the same handle right after it. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool last = records_find(handles(), handle, &record) && record.owner == 1 && records_take(handles(), handle, &record);
    result = cuda.cuMemRelease(handle);
    if (last && result != CUDA_SUCCESS)
        records_add(handles(), record);
    else if (last)
        ended(&record);
    else if (result == CUDA_SUCCESS)
        unrefer(handle);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemRetainAllocationHandle(handle, addr);
    if (result == CUDA_SUCCESS)
        records_refer(handles(), *handle, 1, &record);
    return result;
}

/* A handle that is charged to nobody here, after the driver's answer. */
static CUresult noted(CUresult result, const CUmemGenericAllocationHandle *handle, unsigned kind)
{
    if (result != CUDA_SUCCESS || process->attachment != COUNTED ||
        records_add(handles(), (struct record){.key = *handle, .device = DEVICE_NONE, .kind = kind, .owner = 1}))
        return result;
    cuda.cuMemRelease(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Charged to who made it. If that is this process and the driver gives the same handle again, it counts as one more reference. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
    if (result == CUDA_SUCCESS && records_refer(handles(), *handle, 1, &record))
        return result;
    return noted(result, handle, HANDLE_IMPORTED);
}

/* A mapping or binding, which keeps the memory alive also after the handle is released. */
static CUresult note_use(uint64_t space, uint64_t start, uint64_t length, uint64_t handle)
{
    struct record record;
    if (!records_refer(handles(), handle, 1, &record))
        return CUDA_SUCCESS; /* the host's */
    if (mappings_add(&process->holdings.mappings, (struct mapping){space, start, length, handle}))
        return CUDA_SUCCESS;
    unrefer(handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemMap(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && note_use(0, ptr, size, handle) != CUDA_SUCCESS) {
        cuda.cuMemUnmap(ptr, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemUnmap(ptr, size);
    if (result == CUDA_SUCCESS)
        unrefer_all(0, ptr, size);
    return result;
}

static uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* A number for a piece of an array: its place and its size. */
static uint64_t piece_of(const CUarrayMapInfo *info)
{
    uint64_t hash = mixed(1, info->subresourceType);
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
        return mixed(mixed(mixed(hash, info->subresource.miptail.layer), info->subresource.miptail.offset),
                     info->subresource.miptail.size);
    hash = mixed(hash, (uint64_t)info->subresource.sparseLevel.level << 32 | info->subresource.sparseLevel.layer);
    hash = mixed(hash, (uint64_t)info->subresource.sparseLevel.offsetX << 32 | info->subresource.sparseLevel.offsetY);
    hash = mixed(hash, (uint64_t)info->subresource.sparseLevel.offsetZ << 32 | info->subresource.sparseLevel.extentWidth);
    return mixed(hash, (uint64_t)info->subresource.sparseLevel.extentHeight << 32 | info->subresource.sparseLevel.extentDepth);
}

static void map_piece(const CUarrayMapInfo *info)
{
    struct mapping before;
    uint64_t array = (uintptr_t)info->resource.array, piece = piece_of(info);
    bool replaced = mappings_take(&process->holdings.mappings, array, piece, 1, &before);
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
        note_use(array, piece, 1, info->memHandle.memHandle);
    if (replaced)
        unrefer(before.handle);
}

/* A piece of a sparse array keeps what was mapped there alive until the same piece is mapped again or unmapped, or the array is
 * destroyed. A piece that is unmapped as part of another one counts until the array is destroyed. */
static CUresult map_arrays(CUarrayMapInfo *list, unsigned int count, CUstream stream,
                           CUresult (*ask)(CUarrayMapInfo *, unsigned int, CUstream))
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = ask(list, count, stream);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
        map_piece(&list[i]);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
    return map_arrays(mapInfoList, count, hStream, cuda.cuMemMapArrayAsync);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
    return map_arrays(mapInfoList, count, hStream, cuda.cuMemMapArrayAsync_ptsz);
}

void virtual_array_gone(uint64_t array)
{
    unrefer_all(array, 0, UINT64_MAX);
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS ? noted(cuda.cuMulticastCreate(mcHandle, prop), mcHandle, HANDLE_MULTICAST) : result;
}

/* Each device of a multicast object has offsets of its own. */
static uint64_t place_in_multicast(unsigned device, uint64_t offset)
{
    enum { DEVICE_SHIFT = 56 };
    return (uint64_t)device << DEVICE_SHIFT | offset;
}

/* device NULL: the memory's own. */
static CUresult note_binding(uint64_t multicast, const CUdevice *device, uint64_t offset, uint64_t length, uint64_t handle)
{
    struct record memory;
    if (!records_find(handles(), handle, &memory))
        return CUDA_SUCCESS;
    return note_use(multicast, place_in_multicast(device ? device_index(*device) : memory.device, offset), length, handle);
}

static CUresult note_binding_of_address(uint64_t multicast, const CUdevice *device, uint64_t offset, uint64_t length,
                                        uint64_t address)
{
    uint64_t handle = mappings_handle_at(&process->holdings.mappings, address);
    return handle ? note_binding(multicast, device, offset, length, handle) : CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUmemGenericAllocationHandle memHandle,
                            size_t memOffset, size_t size, unsigned long long flags)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
    return result == CUDA_SUCCESS ? note_binding(mcHandle, NULL, mcOffset, size, memHandle) : result;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size, unsigned long long flags)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMulticastBindMem_v2(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
    return result == CUDA_SUCCESS ? note_binding(mcHandle, &dev, mcOffset, size, memHandle) : result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                             unsigned long long flags)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
    return result == CUDA_SUCCESS ? note_binding_of_address(mcHandle, NULL, mcOffset, size, memptr) : result;
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, CUdeviceptr memptr,
                                size_t size, unsigned long long flags)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMulticastBindAddr_v2(mcHandle, dev, mcOffset, memptr, size, flags);
    return result == CUDA_SUCCESS ? note_binding_of_address(mcHandle, &dev, mcOffset, size, memptr) : result;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMulticastUnbind(mcHandle, dev, mcOffset, size);
    if (result == CUDA_SUCCESS)
        unrefer_all(mcHandle, place_in_multicast(device_index(dev), mcOffset), size);
    return result;
}
