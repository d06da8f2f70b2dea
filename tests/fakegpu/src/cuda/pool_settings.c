/* Attributes of pools, access to them, and which pool a device uses. */
#include "pool.h"

static bool is_reuse(CUmemPool_attribute attribute) {
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const uint64_t values[] = {[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = pool->threshold,
                               [CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT] = pool->reserved,
                               [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] = pool->reserved_high,
                               [CU_MEMPOOL_ATTR_USED_MEM_CURRENT] = pool->used,
                               [CU_MEMPOOL_ATTR_USED_MEM_HIGH] = pool->used_high};
    if (value == NULL || attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
        attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (is_reuse(attribute)) {
        *(int *)value = pool->reuse[attribute];
    } else {
        *(cuuint64_t *)value = values[attribute];
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (is_reuse(attribute)) {
        pool->reuse[attribute] = *(int *)value != 0;
        return driver_leave(CUDA_SUCCESS);
    }
    cuuint64_t number = *(cuuint64_t *)value;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pool->threshold = number;
    } else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && number == 0) {
        pool->reserved_high = pool->reserved;
    } else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && number == 0) {
        pool->used_high = pool->used;
    } else {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(CUDA_SUCCESS);
}

/* Every device of this machine may reach every pool, so that access cannot be taken away and needs no grant. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t i = 0; i < count; i++) {
        bool device = map != NULL && map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && map[i].location.id >= 0 &&
                      map[i].location.id < driver.device_count;
        bool own = device && &driver.device[map[i].location.id] == pool->device;
        if (!device || (own && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
            return driver_leave(CUDA_ERROR_INVALID_VALUE);
        }
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
    CUresult result = pool_enter(pool, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(pool == NULL ? CUDA_ERROR_INVALID_VALUE : pool_default(device, pool));
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(pool == NULL ? CUDA_ERROR_INVALID_VALUE : pool_current(device, pool));
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!pool_is(pool) || pool->device != device || pool->imported) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    device->current_pool = pool;
    return driver_leave(CUDA_SUCCESS);
}

/* CUDA 13's names for the same, by location. */
static bool is_device_memory(const CUmemLocation *location, CUmemAllocationType type) {
    return location != NULL && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return is_device_memory(location, type) ? cuDeviceGetDefaultMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return is_device_memory(location, type) ? cuDeviceGetMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    return is_device_memory(location, type) ? cuDeviceSetMemPool(location->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}
