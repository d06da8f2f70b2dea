/* A process that has no memory left to note what the driver gave it: it is given back, and the program told so. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/resource.h>

#include "../src/charge.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

static int held; /* of the driver */

static CUresult allocate(CUdeviceptr *pointer, size_t bytes)
{
    (void)bytes;
    *pointer = 0x7000000;
    held++;
    return CUDA_SUCCESS;
}

static CUresult allocate_managed(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(pointer, bytes);
}

static CUresult release(CUdeviceptr pointer)
{
    (void)pointer;
    held--;
    return CUDA_SUCCESS;
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool;
    (void)stream;
    return allocate(pointer, bytes);
}

static CUresult release_into(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    return release(pointer);
}

static CUresult ask_pool(CUmemoryPool pool, CUmemPool_attribute name, void *value)
{
    (void)pool;
    switch (name) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = 0; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *(CUmemAllocationType *)value = CU_MEM_ALLOCATION_TYPE_PINNED; break;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *(int *)value = 0; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *(CUmemLocationType *)value = CU_MEM_LOCATION_TYPE_DEVICE; break;
    }
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)prop;
    (void)flags;
    return allocate(handle, bytes);
}

static CUresult create_multicast(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    (void)prop;
    return allocate(handle, 0);
}

static CUresult create_array(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    (void)descriptor;
    *array = (CUarray)0x7000000;
    held++;
    return CUDA_SUCCESS;
}

static CUresult create_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    (void)levels;
    if (descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)
        return CUDA_ERROR_NOT_SUPPORTED;
    *array = (CUmipmappedArray)0x7000000;
    held++;
    return CUDA_SUCCESS;
}

static CUresult end_array(CUarray array)
{
    return release((uintptr_t)array);
}

static CUresult end_mipmap(CUmipmappedArray array)
{
    return release((uintptr_t)array);
}

static void begin(void)
{
    attached_begin();
    cuda.cuMemAlloc_v2 = allocate;
    cuda.cuMemAllocManaged = allocate_managed;
    cuda.cuMemFree_v2 = release;
    cuda.cuMemAllocFromPoolAsync = allocate_from;
    cuda.cuMemFreeAsync = release_into;
    cuda.cuMemPoolGetAttribute = ask_pool;
    cuda.cuMemCreate = create;
    cuda.cuMulticastCreate = create_multicast;
    cuda.cuMemRelease = release;
    cuda.cuArrayCreate_v2 = create_array;
    cuda.cuArrayDestroy = end_array;
    cuda.cuMipmappedArrayCreate = create_mipmap;
    cuda.cuMipmappedArrayDestroy = end_mipmap;
}

TEST(what_cannot_be_noted_is_given_back)
{
    CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 4};
    CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 64, CU_AD_FORMAT_FLOAT, 4, 0};
    CUmemAllocationProp prop = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr pointer;
    CUarray array;
    CUmipmappedArray mipmap;
    if (RUNTIME[0])
        skip("a sanitizer needs memory of its own");
    begin();
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){1, RLIM_INFINITY}) == 0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 64 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAllocManaged(&pointer, 64 * MIB, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(process->holdings.managed[0], 0);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, (CUmemoryPool)0x8000, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemCreate(&pointer, 64 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMulticastCreate(&pointer, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &deep, 2), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(held, 0);
    CHECK_EQUAL(charge_held(0), 0);
}
