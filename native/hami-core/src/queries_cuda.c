/* What a container sees of a card through CUDA: its share. */
#include "charge.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "share.h"

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    unsigned device;
    CUresult entered = charge_current_device(&device);
    if (entered != CUDA_SUCCESS)
        return entered;
    CUresult result = cuda.cuMemGetInfo_v2(free, total);
    if (result != CUDA_SUCCESS || device == DEVICE_NONE)
        return result;
    uint64_t limit = container_limit(device), used = charge_used(device);
    if (free)
        *free = share_free(limit, used, *free);
    if (total)
        *total = share_total(limit, *total);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuDeviceTotalMem_v2(bytes, dev);
    unsigned device = result == CUDA_SUCCESS && process->attachment == COUNTED ? device_index(dev) : DEVICE_NONE;
    if (device != DEVICE_NONE)
        *bytes = share_total(container_limit(device), *bytes);
    return result;
}
