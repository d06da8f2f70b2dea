#include "driver.h"

static struct arena *arena_of(CUdeviceptr address) {
    for (int i = 0; i < driver.device_count; i++) {
        uintptr_t start;
        size_t bytes;
        if (arena_find(&driver.device[i].arena, (uintptr_t)address, &start, &bytes)) {
            return &driver.device[i].arena;
        }
    }
    return NULL;
}

CUresult memory_at(CUdeviceptr address, size_t bytes, bool write, void **host) {
    struct arena *arena = arena_of(address);
    uintptr_t start;
    size_t length;
    if (arena == NULL || !arena_find(arena, (uintptr_t)address, &start, &length) ||
        bytes > length - (size_t)(address - start)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (write) {
        arena_touch(arena, (uintptr_t)address);
    }
    *host = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver_lock);
    CUdeviceptr taken = context->live ? arena_take(&context->device->arena, context, bytes) : 0;
    pthread_mutex_unlock(&driver_lock);
    if (taken == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = taken;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    struct arena *arena = arena_of(address);
    bool given = arena != NULL && arena_give(arena, (uintptr_t)address);
    pthread_mutex_unlock(&driver_lock);
    return given ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t capacity = device_capacity(context->device);
    uint64_t used = device_used(context->device);
    if (free_bytes != NULL) {
        *free_bytes = capacity - (used < capacity ? used : capacity);
    }
    if (total_bytes != NULL) {
        *total_bytes = capacity;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    struct arena *arena = arena_of(address);
    uintptr_t start;
    size_t length;
    bool found = arena != NULL && arena_find(arena, (uintptr_t)address, &start, &length);
    pthread_mutex_unlock(&driver_lock);
    if (!found) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = start;
    }
    if (bytes != NULL) {
        *bytes = length;
    }
    return CUDA_SUCCESS;
}
