/*
 * A pool reserves memory of its device and hands out pieces. What is freed stays reserved, up to the release threshold,
 * until the program waits for the device: then the pool shrinks, and no call tells.
 */
#include "pool.h"

#include "address.h"
#include "graph.h"
#include "ipc.h"
#include "memory.h"
#include "stream.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEP = 512, GROWTH = 32 << 20 };

static CUmemoryPool pools;

static void shrink_to(CUmemoryPool pool, uint64_t bytes) {
    uint64_t keep = bytes > pool->taken ? (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT : pool->taken;
    if (keep < pool->reserved) {
        device_give(pool->device, MEMORY_POOL, pool->reserved - keep);
        pool->reserved = keep;
    }
}

/* Grows by 32 MiB at a time, or by what is needed where there is no room for that. */
static bool take_units(struct arena *arena, uint64_t bytes) {
    CUmemoryPool pool = arena->owner;
    uint64_t wanted = pool->taken + bytes;
    if (wanted > pool->reserved) {
        uint64_t missing = wanted - pool->reserved, generous = (missing + GROWTH - 1) / GROWTH * GROWTH;
        uint64_t most = pool->props.maxSize != 0 ? pool->props.maxSize : UINT64_MAX;
        if (wanted > most) {
            return false;
        }
        if (pool->reserved + generous > most || !device_take(pool->device, MEMORY_POOL, generous)) {
            if (!device_take(pool->device, MEMORY_POOL, missing)) {
                return false;
            }
            generous = missing;
        }
        pool->reserved += generous;
        pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    }
    pool->taken = wanted;
    return true;
}

static void give_units(struct arena *arena, uint64_t bytes) { ((CUmemoryPool)arena->owner)->taken -= bytes; }

static void end_pool(CUmemoryPool pool) {
    CUmemoryPool *link = &pools;
    while (*link != pool) {
        link = &(*link)->next;
    }
    *link = pool->next;
    ipc_end_arena(&pool->arena);
    arena_close(&pool->arena);
    if (pool->fd >= 0) {
        close(pool->fd);
    }
    device_give(pool->device, MEMORY_POOL, pool->reserved);
    struct device *device = pool->device;
    device->default_pool = device->default_pool == pool ? NULL : device->default_pool;
    device->current_pool = device->current_pool == pool ? NULL : device->current_pool;
    object_delete(pool);
}

static CUresult make_pool(struct device *device, const CUmemPoolProps *props, CUmemoryPool *out) {
    CUmemoryPool pool = object_new(OBJECT_POOL, sizeof *pool, NULL, NULL);
    if (pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->device = device;
    pool->props = *props;
    pool->fd = -1;
    pool->reuse[1] = pool->reuse[2] = pool->reuse[3] = 1;
    pool->arena = (struct arena){
        .kind = ARENA_POOL, .device = device, .owner = pool, .take = take_units, .give = give_units};
    if (!arena_open(&pool->arena, 2 * device_capacity(device))) {
        object_delete(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->next = pools;
    pools = pool;
    *out = pool;
    return CUDA_SUCCESS;
}

CUresult pool_import(struct device *device, const CUmemPoolProps *props, CUmemoryPool *pool) {
    CUresult result = make_pool(device, props, pool);
    if (result == CUDA_SUCCESS) {
        (*pool)->imported = true;
    }
    return result;
}

CUresult pool_default(struct device *device, CUmemoryPool *pool) {
    if (device->default_pool == NULL) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device_ordinal(device)}};
        CUresult result = make_pool(device, &props, &device->default_pool);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    *pool = device->default_pool;
    return CUDA_SUCCESS;
}

CUresult pool_current(struct device *device, CUmemoryPool *pool) {
    *pool = device->current_pool;
    return *pool != NULL ? CUDA_SUCCESS : pool_default(device, pool);
}

bool pool_is(CUmemoryPool pool) { return object_is(pool, OBJECT_POOL) && !pool->destroyed; }

void pools_shrink(struct device *device) {
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device == device) {
            shrink_to(pool, pool->threshold);
        }
    }
}

void pools_end(struct device *device) {
    for (CUmemoryPool pool = pools, next; pool != NULL; pool = next) {
        next = pool->next;
        if (pool->device == device) {
            end_pool(pool);
        }
    }
}

static uint64_t stepped(size_t bytes) { return ((uint64_t)bytes + STEP - 1) / STEP * STEP; }

static CUresult allocate(struct CUstream_st *stream, CUmemoryPool pool, size_t bytes, CUdeviceptr *address) {
    if (stream->capture != NULL) { /* becomes a node of the graph, and takes nothing from the pool */
        CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                  .alloc = {.poolProps = pool->props, .bytesize = bytes}};
        CUresult result = stream->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : graph_prepare(&node);
        if (result == CUDA_SUCCESS) {
            *address = node.alloc.dptr;
            result = stream_do(stream, &node);
        }
        return result;
    }
    uintptr_t taken = arena_take(&pool->arena, NULL, bytes);
    if (taken == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->live++;
    pool->used += stepped(bytes);
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    *address = taken;
    return CUDA_SUCCESS;
}

CUmemoryPool pool_of(CUdeviceptr address) {
    struct address found;
    bool known = address_find((uintptr_t)address, &found) && found.arena != NULL && found.arena->kind == ARENA_POOL;
    return known ? found.arena->owner : NULL;
}

CUresult pool_free(CUdeviceptr address) {
    struct address found;
    if (!address_find((uintptr_t)address, &found) || found.start != (uintptr_t)address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemoryPool pool = found.arena->owner;
    memory_forget_shared(&found);
    pool->used -= stepped(found.bytes);
    pool->live--;
    arena_give(found.arena, (uintptr_t)address);
    if (pool->destroyed && pool->live == 0) {
        end_pool(pool);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || !pool_is(pool) || pool->imported) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(allocate(stream, pool, bytes, address));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return cuMemAllocFromPoolAsync(address, bytes, pool, per_thread(stream));
}

/* From the current pool of the stream's device. */
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUmemoryPool pool;
    result = pool_current(stream->object.context->device, &pool);
    return driver_leave(result != CUDA_SUCCESS ? result : allocate(stream, pool, bytes, address));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return cuMemAllocAsync(address, bytes, per_thread(stream));
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct address found;
    if (!address_find((uintptr_t)address, &found) || found.start != (uintptr_t)address) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (stream->capture != NULL) {
        CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = address}};
        bool of_graph = found.arena != NULL && found.arena->kind == ARENA_GRAPH;
        return driver_leave(of_graph ? stream_do(stream, &node) : CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(memory_free(address));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    return cuMemFreeAsync(address, per_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    CUresult result = driver_enter_unsafe();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pool == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    bool shareable = props->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE && !shareable)) {
        return driver_leave(CUDA_ERROR_NOT_SUPPORTED); /* pools of host memory, and fabric handles */
    }
    if (props->location.id < 0 || props->location.id >= driver.device_count) {
        return driver_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    struct device *device = &driver.device[props->location.id];
    result = make_pool(device, props, pool);
    if (result == CUDA_SUCCESS && shareable) { /* an empty file that stands for it */
        (*pool)->fd = shared_convert(&driver.attachment, device->state_index, 0, &(*pool)->shared);
        if ((*pool)->fd < 0) {
            end_pool(*pool);
            result = CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    return driver_leave(result);
}

CUresult pool_enter_as(const char *call, CUmemoryPool pool, enum safety safety) {
    CUresult result = driver_enter_as(call, safety);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return pool_is(pool) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = pool_enter(pool, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device = pool->device;
    if (pool == device->default_pool) {
        return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    device->current_pool = device->current_pool == pool ? NULL : device->current_pool;
    if (pool->live == 0) {
        end_pool(pool);
    } else {
        pool->destroyed = true;
        pool->threshold = 0;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = pool_enter(pool, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    shrink_to(pool, keep);
    return driver_leave(CUDA_SUCCESS);
}
