/* What a container sees of a card through CUDA: its share. */
#include "charge.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "share.h"

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemGetInfo_v2(free, total);
    if (result != CUDA_SUCCESS || payer.device == DEVICE_NONE)
        return result;
    uint64_t limit = container_limit(payer.device), used = charge_used(payer.device);
    if (free)
        *free = share_free(limit, used, *free);
    if (total)
        *total = share_total(limit, *total);
    return result;
}

/* The first form has 32 bits, which is the driver's to fill; a share that fits into them is shown. */
CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemGetInfo(free, total);
    if (result != CUDA_SUCCESS || payer.device == DEVICE_NONE)
        return result;
    uint64_t limit = container_limit(payer.device), used = charge_used(payer.device);
    if (free)
        *free = (unsigned int)share_free(limit, used, *free);
    if (total)
        *total = (unsigned int)share_total(limit, *total);
    return result;
}

static unsigned counted_device(CUdevice device)
{
    return process->attachment == COUNTED ? device_index(device) : DEVICE_NONE;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuDeviceTotalMem_v2(bytes, dev);
    unsigned device = counted_device(dev);
    if (result == CUDA_SUCCESS && device != DEVICE_NONE)
        *bytes = share_total(container_limit(device), *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuDeviceTotalMem(bytes, dev);
    unsigned device = counted_device(dev);
    if (result == CUDA_SUCCESS && device != DEVICE_NONE)
        *bytes = (unsigned int)share_total(container_limit(device), *bytes);
    return result;
}
