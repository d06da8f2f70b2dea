/* Arrays, whose layout and so whose size only the driver knows. It tells the size of an array whose memory is not there yet
 * (DEFERRED_MAPPING, CUDA 11.6), so such a twin is made and thrown away first; where that cannot be, the size is computed from the
 * texels and is then a lower bound. */
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "../quiet.h"
#include "arrays.h"
#include "overhead.h"
#include "virtual.h"

/* Bytes of one channel; block-compressed and video formats take at most this much a texel. */
static uint64_t channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: break;
    }
    return 4;
}

static uint64_t at_least_one(uint64_t extent)
{
    return extent ? extent : 1;
}

static uint64_t computed(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    bool layers = descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t width = at_least_one(descriptor->Width), height = at_least_one(descriptor->Height),
             depth = at_least_one(descriptor->Depth), texel = channel_bytes(descriptor->Format) * at_least_one(descriptor->NumChannels),
             sum = 0;
    for (unsigned level = 0; level < at_least_one(levels); level++) {
        uint64_t bytes;
        if (__builtin_mul_overflow(width, height, &bytes) || __builtin_mul_overflow(bytes, depth, &bytes) ||
            __builtin_mul_overflow(bytes, texel, &bytes) || __builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
        width = at_least_one(width / 2);
        height = at_least_one(height / 2);
        depth = layers ? depth : at_least_one(depth / 2);
    }
    return sum;
}

/* levels 0: not mipmapped. */
static bool ask_twin(CUDA_ARRAY3D_DESCRIPTOR descriptor, unsigned levels, CUdevice device, uint64_t *bytes)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUarray array;
    CUmipmappedArray mipmap;
    CUresult result;

    descriptor.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels) {
        if (cuda.cuMipmappedArrayCreate(&mipmap, &descriptor, levels) != CUDA_SUCCESS)
            return false;
        result = cuda.cuMipmappedArrayGetMemoryRequirements(&requirements, mipmap, device);
        cuda.cuMipmappedArrayDestroy(mipmap);
    } else {
        if (cuda.cuArray3DCreate_v2(&array, &descriptor) != CUDA_SUCCESS)
            return false;
        result = cuda.cuArrayGetMemoryRequirements(&requirements, array, device);
        cuda.cuArrayDestroy(array);
    }
    *bytes = requirements.size;
    return result == CUDA_SUCCESS;
}

/* Sparse and deferred arrays get their memory from cuMemCreate, where it is charged. */
static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, const struct payer *payer)
{
    uint64_t bytes;
    if (payer->device == DEVICE_NONE || descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    struct quiet quiet = quiet_begin();
    bool told = ask_twin(*descriptor, levels, device_handle(payer->device), &bytes);
    quiet_end(quiet);
    return told ? bytes : computed(descriptor, levels);
}

static CUresult begin(struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    return result == CUDA_SUCCESS ? charge_take(charge, payer, CHARGE_DATA, size_of(descriptor, levels, &payer)) : result;
}

/* False: the driver's array could not be noted and is to be destroyed. */
static bool conclude(CUresult result, const struct charge *charge, const void *handle)
{
    bool kept = result == CUDA_SUCCESS && charge_bind(&process->holdings.arrays, charge, (uintptr_t)handle);
    if (!kept)
        charge_give_back(charge);
    return kept || result != CUDA_SUCCESS;
}

static CUresult concluded(CUresult result, const struct charge *charge, const CUarray *array)
{
    if (conclude(result, charge, result == CUDA_SUCCESS ? *array : NULL))
        return result;
    cuda.cuArrayDestroy(*array);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    struct charge charge;
    if (!pAllocateArray)
        return cuda.cuArray3DCreate_v2(pHandle, pAllocateArray);
    CUresult result = begin(&charge, pAllocateArray, 0);
    return result == CUDA_SUCCESS ? concluded(cuda.cuArray3DCreate_v2(pHandle, pAllocateArray), &charge, pHandle) : result;
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
    const CUDA_ARRAY3D_DESCRIPTOR_v1 *d = pAllocateArray;
    struct charge charge;
    if (!d)
        return cuda.cuArray3DCreate(pHandle, d);
    CUresult result =
        begin(&charge, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags}, 0);
    return result == CUDA_SUCCESS ? concluded(cuda.cuArray3DCreate(pHandle, d), &charge, pHandle) : result;
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    const CUDA_ARRAY_DESCRIPTOR *d = pAllocateArray;
    struct charge charge;
    if (!d)
        return cuda.cuArrayCreate_v2(pHandle, d);
    CUresult result = begin(&charge, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, 0);
    return result == CUDA_SUCCESS ? concluded(cuda.cuArrayCreate_v2(pHandle, d), &charge, pHandle) : result;
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
    const CUDA_ARRAY_DESCRIPTOR_v1 *d = pAllocateArray;
    struct charge charge;
    if (!d)
        return cuda.cuArrayCreate(pHandle, d);
    CUresult result = begin(&charge, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, 0);
    return result == CUDA_SUCCESS ? concluded(cuda.cuArrayCreate(pHandle, d), &charge, pHandle) : result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels)
{
    struct charge charge;
    if (!pMipmappedArrayDesc || !numMipmapLevels)
        return cuda.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    CUresult result = begin(&charge, pMipmappedArrayDesc, numMipmapLevels);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    if (conclude(result, &charge, result == CUDA_SUCCESS ? *pHandle : NULL))
        return result;
    cuda.cuMipmappedArrayDestroy(*pHandle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Where its size was not told, a part of it may have been found as overhead. */
static void give_back(const struct record *record)
{
    charge_give_back(&(struct charge){{record->device, NULL}, CHARGE_DATA, record->bytes});
    overhead_gone(record->device, 0);
}

/* The record goes before the driver's answer, since another thread may be given the same handle right after it. */
static CUresult destroyed(CUresult result, bool known, const struct record *record, uint64_t array)
{
    if (result == CUDA_SUCCESS)
        virtual_array_gone(array);
    if (known && result == CUDA_SUCCESS)
        give_back(record);
    else if (known)
        records_add(&process->holdings.arrays, *record);
    return result;
}

CUresult cuArrayDestroy(CUarray hArray)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.arrays, (uintptr_t)hArray, &record);
    return destroyed(cuda.cuArrayDestroy(hArray), known, &record, (uintptr_t)hArray);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.arrays, (uintptr_t)hMipmappedArray, &record);
    return destroyed(cuda.cuMipmappedArrayDestroy(hMipmappedArray), known, &record, (uintptr_t)hMipmappedArray);
}

void arrays_gone_with(CUcontext context)
{
    struct record record;
    while (context && records_take_of(&process->holdings.arrays, (uintptr_t)context, &record)) {
        virtual_array_gone(record.key);
        give_back(&record);
    }
}
