/* Whose memory a pool's is, by a driver of this file that tells it as CUDA 13 does. */
#include "../src/charge.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

static const CUmemLocationType HOST = (CUmemLocationType)2;

static struct {
    CUmemAllocationType type;
    CUmemLocation location;
    cuuint64_t holds;
} pool;

static CUresult attribute(CUmemoryPool asked, CUmemPool_attribute name, void *value)
{
    (void)asked;
    switch (name) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = pool.holds; break;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *(CUmemAllocationType *)value = pool.type; break;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *(int *)value = pool.location.id; break;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *(CUmemLocationType *)value = pool.location.type; break;
    }
    return CUDA_SUCCESS;
}

static CUresult make(CUmemoryPool *made, const CUmemPoolProps *properties)
{
    pool.type = properties->allocType;
    pool.location = properties->location;
    *made = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool from, CUstream stream)
{
    (void)from;
    (void)stream;
    *pointer = 0x7000000;
    pool.holds += bytes;
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer, CUstream stream)
{
    (void)pointer;
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult end(CUmemoryPool ended)
{
    (void)ended;
    return CUDA_SUCCESS;
}

static CUresult trim(CUmemoryPool trimmed, size_t kept)
{
    (void)trimmed;
    (void)kept;
    return CUDA_SUCCESS;
}

/* 64 MiB out of a pool of this kind, asked for in a context of the first card. */
static CUdeviceptr take(CUmemAllocationType type, CUmemLocationType place, int id, bool made_here)
{
    CUmemPoolProps properties = {.allocType = type, .location = {place, id}};
    CUmemoryPool handle;
    CUdeviceptr pointer;
    attached_begin();
    cuda.cuMemPoolGetAttribute = attribute;
    cuda.cuMemPoolCreate = make;
    cuda.cuMemAllocFromPoolAsync = allocate;
    cuda.cuMemFreeAsync = release;
    cuda.cuMemPoolTrimTo = trim;
    cuda.cuMemPoolDestroy = end;
    pool.holds = 0;
    CHECK_EQUAL((made_here ? cuMemPoolCreate : make)(&handle, &properties), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, handle, NULL), CUDA_SUCCESS);
    return pointer;
}

TEST(the_device_of_a_pool_pays_and_for_memory_of_the_host_none)
{
    for (unsigned made_here = 0; made_here < 2; made_here++) {
        take(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 1, made_here);
        CHECK_EQUAL(charge_held(0), 0);
        CHECK_EQUAL(charge_held(1), 64 * MIB);
        take(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 | 3 << 8, made_here);
        CHECK_EQUAL(charge_held(1), 64 * MIB);
        take(CU_MEM_ALLOCATION_TYPE_PINNED, HOST, 0, made_here);
        CHECK_EQUAL(charge_held(0), 0);
        CHECK_EQUAL(charge_held(1), 0);
    }
}

TEST(managed_pools_are_the_devices_that_they_prefer_or_that_use_them)
{
    for (unsigned made_here = 0; made_here < 2; made_here++) {
        take(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE, 1, made_here);
        CHECK_EQUAL(charge_held(1), 64 * MIB);
        take(CU_MEM_ALLOCATION_TYPE_MANAGED, HOST, 0, made_here);
        CHECK_EQUAL(charge_held(0), 64 * MIB);
    }
}

/* What is charged for it may not be on the card, so NVML's figure tells nothing beside it. */
TEST(managed_pools_are_managed_memory_while_they_live)
{
    CUdeviceptr pointer = take(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_DEVICE, 1, true);
    CHECK(process->holdings.managed[1] > 0);
    CHECK_EQUAL(cuMemPoolDestroy((CUmemoryPool)&pool), CUDA_SUCCESS);
    CHECK(process->holdings.managed[1] > 0);
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(process->holdings.managed[1], 0);
    CHECK_EQUAL(charge_held(1), 0);
    take(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 1, true);
    CHECK_EQUAL(process->holdings.managed[1], 0);
}

static CUresult context_of(CUstream stream, CUcontext *context)
{
    (void)stream;
    *context = (CUcontext)0x9000;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    CHECK(context == (CUcontext)0x9000);
    attached_current = 1;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    *context = (CUcontext)0x9000;
    attached_current = 0;
    return CUDA_SUCCESS;
}

static CUresult current_pool(CUmemoryPool *current, CUdevice device)
{
    CHECK_EQUAL(device, 1);
    *current = (CUmemoryPool)&pool;
    return CUDA_SUCCESS;
}

static CUresult allocate_in_order(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    CHECK_EQUAL(attached_current, 0);
    return allocate(pointer, bytes, NULL, stream);
}

/* A context may be made by a way that is not wrapped. */
TEST(the_device_of_a_stream_is_found_also_in_a_context_that_is_not_known)
{
    CUdeviceptr pointer;
    attached_begin();
    cuda.cuMemPoolGetAttribute = attribute;
    cuda.cuStreamGetCtx = context_of;
    cuda.cuCtxPushCurrent_v2 = push;
    cuda.cuCtxPopCurrent_v2 = pop;
    cuda.cuDeviceGetMemPool = current_pool;
    cuda.cuMemAllocAsync = allocate_in_order;
    pool.holds = 0;
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 64 * MIB, (CUstream)0x5000), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(0), 0);
    CHECK_EQUAL(charge_held(1), 64 * MIB);
}
