/* Plain device memory: cuMemAlloc and its kin, and cuMemFree. */
#include "linear.h"

#include <stdlib.h>
#include <string.h>

#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "graphs.h"
#include "overhead.h"
#include "pools.h"

static struct records *linear(void)
{
    return &process->holdings.linear;
}

/* Managed memory is charged in full, wherever the driver keeps it; so how much there is of it says whether NVML's figure for the
 * process can be compared with the charges. */
static void count_managed(unsigned device, uint64_t bytes)
{
    if (device != DEVICE_NONE)
        __atomic_fetch_add(&process->holdings.managed[device], bytes, __ATOMIC_RELAXED);
}

/* After the driver's answer: the charge goes to the pointer or back. */
HOT static CUresult conclude(CUresult result, struct charge *charge, CUdeviceptr pointer)
{
    bool managed = charge->kind == CHARGE_MANAGED && result == CUDA_SUCCESS;
    if (managed)
        count_managed(charge->payer.device, charge->bytes);
    if (result == CUDA_SUCCESS && !charge_bind(linear(), charge, pointer)) {
        cuda.cuMemFree_v2(pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
        if (managed)
            count_managed(charge->payer.device, -charge->bytes);
    }
    if (result != CUDA_SUCCESS)
        charge_give_back(charge);
    return result;
}

static CUresult begin_as(enum charge_kind kind, struct charge *charge, uint64_t bytes)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    return result == CUDA_SUCCESS ? charge_take(charge, payer, kind, bytes) : result;
}

static CUresult begin(struct charge *charge, uint64_t bytes)
{
    return begin_as(CHARGE_DATA, charge, bytes);
}

/* HAMi: with CUDA_OVERSUBSCRIBE=true, what the limit allows and the card has not is served from managed memory, which the driver
 * moves between card and host. Only where the card can be used from both sides at once. */
static SLOW bool may_oversubscribe(void)
{
    const char *value = getenv("CUDA_OVERSUBSCRIBE");
    CUdevice device;
    int concurrent = 0;
    return value && strcmp(value, "true") == 0 && cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
           cuda.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) == CUDA_SUCCESS &&
           concurrent;
}

HOT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct charge charge;
    CUresult result = begin(&charge, bytesize);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAlloc_v2(dptr, bytesize);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && may_oversubscribe()) {
        charge.kind = CHARGE_MANAGED;
        result = cuda.cuMemAllocManaged(dptr, bytesize, CU_MEM_ATTACH_GLOBAL);
    }
    return conclude(result, &charge, result == CUDA_SUCCESS ? *dptr : 0);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    struct charge charge;
    CUresult result = begin(&charge, bytesize);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAlloc(dptr, bytesize);
    return conclude(result, &charge, result == CUDA_SUCCESS ? *dptr : 0);
}

/* Charged in full, though the driver may keep it on the host: it may also all be on the card. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct charge charge;
    CUresult result = begin_as(CHARGE_MANAGED, &charge, bytesize);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAllocManaged(dptr, bytesize, flags);
    return conclude(result, &charge, result == CUDA_SUCCESS ? *dptr : 0);
}

/* The pitch is known only afterwards; drivers round it up to 512 bytes or less. */
static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    enum { PITCH = 512 };
    uint64_t pitch = (width + PITCH - 1) / PITCH * PITCH, bytes;
    return pitch < width || __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
    struct charge charge;
    CUresult result = begin(&charge, pitched_bytes(WidthInBytes, Height));
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    if (result == CUDA_SUCCESS)
        charge_correct(&charge, (uint64_t)*pPitch * Height);
    return conclude(result, &charge, result == CUDA_SUCCESS ? *dptr : 0);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes)
{
    struct charge charge;
    CUresult result = begin(&charge, pitched_bytes(WidthInBytes, Height));
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    if (result == CUDA_SUCCESS)
        charge_correct(&charge, (uint64_t)*pPitch * Height);
    return conclude(result, &charge, result == CUDA_SUCCESS ? *dptr : 0);
}

HOT static void give_back(const struct record *record)
{
    if (record->kind == LINEAR_OF_GRAPH) {
        graph_pointer_freed(record);
        return;
    }
    charge_give_back(&(struct charge){{record->device, NULL}, CHARGE_DATA, record->bytes});
    if (record->kind == CHARGE_MANAGED)
        count_managed(record->device, -record->bytes);
    else
        overhead_rounding_gone(record->device, record->bytes);
}

HOT void linear_depart(CUdeviceptr pointer, struct departure *departure)
{
    departure->known = records_take(linear(), pointer, &departure->record);
}

HOT void linear_departed(const struct departure *departure, CUresult result)
{
    const struct record *record = &departure->record;
    if (!departure->known)
        return;
    if (result != CUDA_SUCCESS)
        records_add(linear(), *record);
    else if (record->kind == LINEAR_POOLED)
        pool_freed(record);
    else
        give_back(record);
}

void linear_gone_with(CUcontext context)
{
    struct record record;
    while (context && records_take_of(linear(), (uintptr_t)context, &record))
        give_back(&record);
}

HOT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct departure departure;
    linear_depart(dptr, &departure);
    result = cuda.cuMemFree_v2(dptr);
    linear_departed(&departure, result);
    return result;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct departure departure;
    linear_depart(dptr, &departure);
    result = cuda.cuMemFree(dptr);
    linear_departed(&departure, result);
    return result;
}
