/*
 * Pools for other processes: a descriptor stands for the pool, and 64 bytes for each block. Whoever imports them reaches
 * the memory and pays nothing; nothing is allocated from an imported pool.
 */
#include "ipc.h"
#include "pool.h"

#include <fcntl.h>

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->fd < 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
    }
    *(int *)handle = fd;
    return driver_leave(CUDA_SUCCESS);
}

static struct device *device_of(int state_index) {
    for (int i = 0; i < driver.device_count; i++) {
        if (driver.device[i].state_index == state_index) {
            return &driver.device[i];
        }
    }
    return NULL;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct shared shared;
    struct device *device = NULL;
    if (pool != NULL && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        shared_identify(&driver.attachment, (int)(intptr_t)handle, &shared)) {
        device = device_of(shared.device);
    }
    if (device == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = type,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device_ordinal(device)}};
    return driver_leave(pool_import(device, &props, pool));
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    _Static_assert(sizeof *data == IPC_HANDLE_BYTES, "one size");
    const CUmemoryPool pool = pool_of(address);
    bool good = data != NULL && pool != NULL && pool->fd >= 0;
    return driver_leave(good ? ipc_export(data, address, &pool->arena) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = address != NULL && data != NULL && pool->imported;
    return driver_leave(good ? ipc_open(data, pool->device, NULL, address) : CUDA_ERROR_INVALID_VALUE);
}
