#include "pools.h"

#include <stdlib.h>

#include "../compute/captures.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "../quiet.h"
#include "contexts.h"
#include "linear.h"
#include "overhead.h"

/* One pool of this process. The lock is held from the reservation until the charge is what the driver says, so that no other
 * thread's growth is taken for this one's. */
struct pool {
    struct pool *next;
    struct lock lock;
    CUmemoryPool handle; /* NULL: destroyed */
    struct charge charge;
    uint64_t pieces;  /* of the driver's, at most, that its pointers are in */
    uint64_t at_most; /* what it held when the driver last told */
    bool by_pointers; /* the driver does not tell what it holds, of a destroyed one no more: it is what its pointers are in */
};

static struct pool *find(CUmemoryPool handle)
{
    struct pool *pool = process->holdings.pools;
    while (pool && (pool->handle != handle || !handle))
        pool = pool->next;
    return pool;
}

/* Memory of such a pool is charged in full too, wherever the driver keeps it. */
static void count_if_managed(const struct pool *pool, int pools)
{
    unsigned device = pool->charge.payer.device;
    if (pool->charge.kind == CHARGE_MANAGED && device != DEVICE_NONE)
        __atomic_fetch_add(&process->holdings.managed[device], (uint64_t)(int64_t)pools, __ATOMIC_RELAXED);
}

/* The pool of a handle, noted now if it was not, with this charge of nothing. NULL: no memory. */
static struct pool *pool_of(CUmemoryPool handle, struct charge nothing)
{
    struct holdings *holdings = &process->holdings;
    lock_take(&holdings->pools_lock);
    struct pool *pool = find(handle);
    if (!pool && (pool = calloc(1, sizeof(*pool)))) {
        pool->handle = handle;
        pool->charge = nothing;
        count_if_managed(pool, 1);
        pool->next = holdings->pools;
        __atomic_store_n(&holdings->pools, pool, __ATOMIC_RELEASE);
    }
    lock_drop(&holdings->pools_lock);
    return pool;
}

/* Under the pool's lock, as all that follows. */
static uint64_t holds(struct pool *pool)
{
    cuuint64_t reserved;
    pool->by_pointers =
        !pool->handle || cuda.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS;
    if (!pool->by_pointers) {
        pool->at_most = reserved;
        return reserved;
    }
    return pool->at_most && pool->at_most < pool->pieces ? pool->at_most : pool->pieces;
}

static void settle_one(struct pool *pool)
{
    charge_correct(&pool->charge, holds(pool));
}

/* After an allocation. The driver may have taken more than was asked for, to have some in hand; if the container has no room for
 * that, the pool gives it back. */
static void settle_grown(struct pool *pool)
{
    struct charge more;
    uint64_t held = holds(pool);
    if (held > pool->charge.bytes) {
        if (charge_try(&more, pool->charge.payer, CHARGE_DATA, held - pool->charge.bytes))
            pool->charge.bytes = held;
        else
            cuda.cuMemPoolTrimTo(pool->handle, 0);
    }
    settle_one(pool);
}

static void for_each_at_rest(void (*act)(struct pool *pool), unsigned device)
{
    struct holdings *holdings = &process->holdings;
    if (!__atomic_load_n(&holdings->pools, __ATOMIC_ACQUIRE))
        return;
    struct quiet quiet = quiet_begin();
    lock_take(&holdings->pools_lock);
    for (struct pool *pool = holdings->pools; pool; pool = pool->next) {
        /* One that is in use settles itself. */
        if ((device != DEVICE_NONE && pool->charge.payer.device != device) || !lock_try(&pool->lock))
            continue;
        act(pool);
        lock_drop(&pool->lock);
    }
    lock_drop(&holdings->pools_lock);
    quiet_end(quiet);
}

void pools_settle(void)
{
    for_each_at_rest(settle_one, DEVICE_NONE);
}

static void trim_one(struct pool *pool)
{
    if (!pool->by_pointers)
        cuda.cuMemPoolTrimTo(pool->handle, 0);
    settle_one(pool);
}

void pools_trim(unsigned device)
{
    for_each_at_rest(trim_one, device);
}

/* A stream-ordered call, in the legacy or the per-thread form of the default stream. */
struct call {
    CUstream stream;
    CUmemoryPool pool; /* NULL: the current pool of the stream's device */
    bool per_thread;
};

static CUresult ask_driver(const struct call *call, CUdeviceptr *pointer, size_t bytes)
{
    if (call->pool)
        return call->per_thread ? cuda.cuMemAllocFromPoolAsync_ptsz(pointer, bytes, call->pool, call->stream)
                                : cuda.cuMemAllocFromPoolAsync(pointer, bytes, call->pool, call->stream);
    return call->per_thread ? cuda.cuMemAllocAsync_ptsz(pointer, bytes, call->stream)
                            : cuda.cuMemAllocAsync(pointer, bytes, call->stream);
}

/* Under stream capture the call makes a node of a graph and takes nothing. */
static bool is_capturing(const struct call *call)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = call->per_thread ? cuda.cuStreamIsCapturing_ptsz(call->stream, &status)
                                       : cuda.cuStreamIsCapturing(call->stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* How and to whom a pool is charged. False: managed memory that is no device's. */
static bool charge_by_place(CUmemAllocationType type, CUmemLocation location, struct charge *nothing)
{
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    *nothing = (struct charge){.kind = managed ? CHARGE_MANAGED : CHARGE_DATA};
    return charge_location(location, &nothing->payer) == CUDA_SUCCESS && (nothing->payer.device != DEVICE_NONE || !managed);
}

/* The same for a pool that nobody has made: a default one. Drivers that do not tell where a pool is, before CUDA 13, have those of
 * devices alone. */
static bool charge_by_driver(CUmemoryPool pool, struct charge *nothing)
{
    CUmemAllocationType type;
    CUmemLocation location;
    CUmemoryPool other;
    if (cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) == CUDA_SUCCESS &&
        cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location.type) == CUDA_SUCCESS &&
        cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &location.id) == CUDA_SUCCESS)
        return charge_by_place(type, location, nothing);
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        *nothing = (struct charge){{device, NULL}, CHARGE_DATA, 0};
        if (device_is_visible(device) && cuda.cuDeviceGetDefaultMemPool(&other, device_handle(device)) == CUDA_SUCCESS && other == pool)
            return true;
    }
    return false;
}

static CUresult pool_for(const struct call *call, struct pool **pool)
{
    struct charge nothing = {.kind = CHARGE_DATA};
    CUdevice device;
    CUmemoryPool handle = call->pool;
    struct pool *known = NULL;
    CUresult result = CUDA_SUCCESS;

    if (handle) {
        lock_take(&process->holdings.pools_lock);
        known = find(handle);
        lock_drop(&process->holdings.pools_lock);
    }
    *pool = known;
    if (known)
        return CUDA_SUCCESS;
    if (!handle || !charge_by_driver(handle, &nothing)) {
        result = context_device_of_stream(call->stream, call->per_thread, &device);
        if (result == CUDA_SUCCESS)
            result = charge_device(device, &nothing.payer);
        if (result == CUDA_SUCCESS && !handle)
            result = cuda.cuDeviceGetMemPool(&handle, device);
    }
    if (result == CUDA_SUCCESS && !(*pool = pool_of(handle, nothing)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

/* Room for a request in a pool whose lock is held. What the pool has cached may serve it, but only the driver knows. */
static CUresult reserve(struct pool *pool, uint64_t bytes)
{
    struct charge growth;
    if (!charge_try(&growth, pool->charge.payer, CHARGE_DATA, charge_whole_pieces(bytes))) {
        struct quiet quiet = quiet_begin();
        trim_one(pool);
        quiet_end(quiet);
        CUresult result = charge_take(&growth, pool->charge.payer, CHARGE_DATA, charge_whole_pieces(bytes));
        if (result != CUDA_SUCCESS)
            return result;
    }
    pool->charge.bytes += growth.bytes;
    return CUDA_SUCCESS;
}

static CUresult allocate_in(struct pool *pool, const struct call *call, CUdeviceptr *pointer, size_t bytes)
{
    CUresult result = reserve(pool, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    overhead_grows(pool->charge.payer.device);
    result = ask_driver(call, pointer, bytes);
    if (result == CUDA_SUCCESS) {
        struct record record = {.key = *pointer,
                                .bytes = bytes,
                                .device = pool->charge.payer.device,
                                .kind = LINEAR_POOLED,
                                .owner = (uintptr_t)pool};
        pool->pieces += charge_whole_pieces(bytes);
        if (!records_add(&process->holdings.linear, record)) {
            pool->pieces -= charge_whole_pieces(bytes);
            cuda.cuMemFreeAsync(*pointer, call->stream);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    struct quiet quiet = quiet_begin();
    settle_grown(pool);
    quiet_end(quiet);
    overhead_grew(pool->charge.payer.device);
    return result;
}

static CUresult allocate(const struct call *call, CUdeviceptr *pointer, size_t bytes)
{
    struct pool *pool;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (process->attachment == UNCOUNTED || is_capturing(call))
        return ask_driver(call, pointer, bytes);
    struct quiet quiet = quiet_begin();
    result = pool_for(call, &pool);
    quiet_end(quiet);
    if (result != CUDA_SUCCESS)
        return result;
    if (pool->charge.payer.device == DEVICE_NONE)
        return ask_driver(call, pointer, bytes);
    lock_take(&pool->lock);
    result = allocate_in(pool, call, pointer, bytes);
    lock_drop(&pool->lock);
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return allocate(&(struct call){hStream, NULL, false}, dptr, bytesize);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    return allocate(&(struct call){hStream, NULL, true}, dptr, bytesize);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    return pool ? allocate(&(struct call){hStream, pool, false}, dptr, bytesize)
                : cuda.cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    return pool ? allocate(&(struct call){hStream, pool, true}, dptr, bytesize)
                : cuda.cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream);
}

static CUresult release(CUdeviceptr pointer, CUstream stream, bool per_thread, CUresult (*ask)(CUdeviceptr, CUstream))
{
    if (captures_touch(stream, per_thread))
        return ask(pointer, stream); /* becomes a node of a graph */
    struct departure departure;
    linear_depart(pointer, &departure);
    CUresult result = ask(pointer, stream);
    linear_departed(&departure, result);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS ? release(dptr, hStream, false, cuda.cuMemFreeAsync) : result;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS ? release(dptr, hStream, true, cuda.cuMemFreeAsync_ptsz) : result;
}

static void forget(struct pool *gone)
{
    struct holdings *holdings = &process->holdings;
    lock_take(&holdings->pools_lock);
    struct pool **place = &holdings->pools;
    while (*place && *place != gone)
        place = &(*place)->next;
    if (*place)
        __atomic_store_n(place, gone->next, __ATOMIC_RELEASE);
    count_if_managed(gone, -1);
    lock_drop(&holdings->pools_lock);
    free(gone);
}

void pool_freed(const struct record *record)
{
    struct pool *pool = (struct pool *)(uintptr_t)record->owner;
    lock_take(&pool->lock);
    pool->pieces -= charge_whole_pieces(record->bytes);
    if (pool->by_pointers)
        settle_one(pool);
    bool untold = pool->by_pointers, gone = untold && !pool->handle && pool->pieces == 0;
    lock_drop(&pool->lock);
    if (untold)
        overhead_gone(record->device, 0);
    if (gone)
        forget(pool);
}

static bool is_gone(const struct pool *pool, bool primary)
{
    cuuint64_t reserved;
    if (pool->by_pointers)
        return primary;
    return cuda.cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS;
}

static struct pool *next_gone(unsigned device, bool primary)
{
    struct pool *pool;
    lock_take(&process->holdings.pools_lock);
    for (pool = process->holdings.pools; pool; pool = pool->next)
        if (pool->charge.payer.device == device && is_gone(pool, primary))
            break;
    lock_drop(&process->holdings.pools_lock);
    return pool;
}

void pools_may_be_gone(unsigned device, bool primary)
{
    struct pool *pool;
    struct record pointer;
    struct quiet quiet = quiet_begin();
    while ((pool = next_gone(device, primary))) {
        while (records_take_of(&process->holdings.linear, (uintptr_t)pool, &pointer))
            ;
        lock_take(&pool->lock);
        charge_correct(&pool->charge, 0);
        lock_drop(&pool->lock);
        forget(pool);
    }
    quiet_end(quiet);
}

/* A pool of managed memory that is no device's is noted when it is first used: the stream's device pays. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    struct charge nothing;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemPoolCreate(pool, poolProps);
    if (result == CUDA_SUCCESS && process->attachment == COUNTED &&
        charge_by_place(poolProps->allocType, poolProps->location, &nothing) && !pool_of(*pool, nothing)) {
        cuda.cuMemPoolDestroy(*pool);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* A destroyed pool lives on until its pointers are freed, and the driver no longer answers for it. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    lock_take(&process->holdings.pools_lock);
    struct pool *known = find(pool);
    lock_drop(&process->holdings.pools_lock);
    if (!known)
        return cuda.cuMemPoolDestroy(pool);
    lock_take(&known->lock);
    struct quiet quiet = quiet_begin();
    trim_one(known); /* what no pointer is in would be held until the next synchronisation, untold */
    quiet_end(quiet);
    result = cuda.cuMemPoolDestroy(pool);
    bool gone = result == CUDA_SUCCESS && known->pieces == 0;
    if (result == CUDA_SUCCESS) {
        known->by_pointers = true;
        known->handle = NULL;
        settle_one(known);
    }
    lock_drop(&known->lock);
    if (gone)
        forget(known);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemPoolTrimTo(pool, minBytesToKeep);
    pools_settle();
    return result;
}
