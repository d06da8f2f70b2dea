/* cuMemAlloc, cuMemAllocPitch and cuMemFree, and what is asked about memory. */
#include "memory.h"

#include "address.h"
#include "driver.h"
#include "external.h"
#include "graph.h"
#include "host.h"
#include "ipc.h"
#include "low.h"
#include "managed.h"
#include "pool.h"
#include "queue.h"

static bool take_linear(struct arena *arena, uint64_t bytes) { return device_take(arena->device, MEMORY_LINEAR, bytes); }

static void give_linear(struct arena *arena, uint64_t bytes) { device_give(arena->device, MEMORY_LINEAR, bytes); }

bool memory_open(struct device *device) {
    device->arena.kind = ARENA_LINEAR;
    device->arena.device = device;
    device->arena.take = take_linear;
    device->arena.give = give_linear;
    return arena_open(&device->arena, 4 * device_capacity(device));
}

static CUresult allocate(struct CUctx_st *context, size_t bytes, CUdeviceptr *address) {
    uintptr_t taken = arena_take(&context->device->arena, context, bytes);
    if (taken == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device_note_requested(context->device, (int64_t)bytes);
    context->requested_bytes += bytes;
    *address = taken;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = address != NULL && bytes != 0;
    return driver_leave(good ? allocate(context, bytes, address) : CUDA_ERROR_INVALID_VALUE);
}

/* Rows start at multiples of 512 bytes, the alignment of textures. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    enum { ALIGNMENT = 512 };
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || pitch == NULL || width == 0 || height == 0 ||
        (element != 4 && element != 8 && element != 16)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    size_t row = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes)) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = allocate(context, bytes, address);
    if (result == CUDA_SUCCESS) {
        *pitch = row;
    }
    return driver_leave(result);
}

void memory_free_range(struct range *range) {
    switch (range->kind) {
    case RANGE_MANAGED:
        managed_free(range);
        break;
    case RANGE_HOST:
    case RANGE_REGISTERED:
        host_free(range);
        break;
    case RANGE_OPENED:
        ipc_close(range);
        break;
    case RANGE_EXTERNAL:
        external_unmap(range);
        break;
    case RANGE_LOW:
        low_free(range);
        break;
    case RANGE_VIRTUAL: /* belongs to no context */
    case RANGE_GLOBALS: /* ends with its module */
        break;
    }
}

CUresult memory_free(CUdeviceptr address) {
    struct address found;
    if (!address_find((uintptr_t)address, &found) || found.start != (uintptr_t)address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (found.range != NULL) {
        enum range_kind kind = found.range->kind;
        if (kind == RANGE_OPENED && found.range->context == NULL) { /* a block of an imported pool */
            ipc_close_once(found.range);
            return CUDA_SUCCESS;
        }
        if (kind != RANGE_MANAGED && kind != RANGE_LOW && kind != RANGE_EXTERNAL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memory_free_range(found.range);
        return CUDA_SUCCESS;
    }
    switch (found.arena->kind) {
    case ARENA_LINEAR:
        memory_forget_shared(&found);
        device_note_requested(found.device, -(int64_t)found.bytes);
        found.context->requested_bytes -= found.bytes;
        arena_give(found.arena, (uintptr_t)address);
        return CUDA_SUCCESS;
    case ARENA_POOL:
        return pool_free(address);
    case ARENA_GRAPH:
        return graph_memory_give(address);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    queue_wait_device(context->device); /* the device may be using it */
    return driver_leave(memory_free(address));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device = context->device;
    driver_leave(CUDA_SUCCESS);
    uint64_t capacity = device_capacity(device);
    uint64_t used = device_used(device);
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
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct address found;
    if (!address_find((uintptr_t)address, &found)) {
        return driver_leave(CUDA_ERROR_NOT_FOUND);
    }
    if (base != NULL) {
        *base = found.start;
    }
    if (bytes != NULL) {
        *bytes = found.bytes;
    }
    return driver_leave(CUDA_SUCCESS);
}
