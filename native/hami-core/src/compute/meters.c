#include "meters.h"

#include "../driver.h"
#include "../message.h"
#include "../quiet.h"

static bool move(struct meter *meter, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(&meter->state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* The stream's context, which may not be the current one: events are made in it. */
struct visit {
    bool pushed;
};

static struct visit visit_context_of(CUstream stream, bool per_thread)
{
    enum { LAST_NAMED_STREAM = 2 }; /* NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are the current context's */
    CUcontext current, owner;
    struct visit visit = {false};
    if ((uintptr_t)stream <= LAST_NAMED_STREAM)
        return visit;
    CUresult result = per_thread ? cuda.cuStreamGetCtx_ptsz(stream, &owner) : cuda.cuStreamGetCtx(stream, &owner);
    if (result == CUDA_SUCCESS && cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != owner)
        visit.pushed = cuda.cuCtxPushCurrent_v2(owner) == CUDA_SUCCESS;
    return visit;
}

static void leave(struct visit visit)
{
    CUcontext popped;
    if (visit.pushed)
        cuda.cuCtxPopCurrent_v2(&popped);
}

static CUresult record(CUevent event, CUstream stream, bool per_thread)
{
    return per_thread ? cuda.cuEventRecord_ptsz(event, stream) : cuda.cuEventRecord(event, stream);
}

static bool make_events(struct meter *meter)
{
    if (cuda.cuEventCreate(&meter->begin, 0) != CUDA_SUCCESS)
        return false;
    if (cuda.cuEventCreate(&meter->end, 0) == CUDA_SUCCESS)
        return true;
    cuda.cuEventDestroy_v2(meter->begin);
    return false;
}

static void drop_events(struct meter *meter)
{
    cuda.cuEventDestroy_v2(meter->begin);
    cuda.cuEventDestroy_v2(meter->end);
}

static void release(struct meter *meter)
{
    cost_timed(meter->cost);
    __atomic_store_n(&meter->state, METER_FREE, __ATOMIC_RELEASE);
}

static bool begin_events(struct meter *meter, CUstream stream, bool per_thread)
{
    struct quiet quiet = quiet_begin();
    struct visit visit = visit_context_of(stream, per_thread);
    bool made = make_events(meter);
    bool begun = made && record(meter->begin, stream, per_thread) == CUDA_SUCCESS;
    if (made && !begun)
        drop_events(meter);
    leave(visit);
    quiet_end(quiet);
    return begun;
}

static void say_untimed(void)
{
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        message(MESSAGE_WARNING, "a launch could not be timed; while that lasts, the compute cap of this container does not hold");
}

struct meter *meter_begin(struct meters *meters, struct cost *cost, unsigned device, CUstream stream, bool per_thread)
{
    struct meter *meter = NULL;
    for (unsigned i = 0; i < METERS && !meter; i++)
        if (move(&meters->table[i], METER_FREE, METER_TAKEN))
            meter = &meters->table[i];
    if (!meter) {
        cost_timed(cost);
        return NULL;
    }
    meter->cost = cost;
    meter->key = __atomic_load_n(&cost->key, __ATOMIC_RELAXED);
    meter->device = device;
    if (begin_events(meter, stream, per_thread))
        return meter;
    say_untimed();
    release(meter);
    return NULL;
}

void meter_end(struct meters *meters, struct meter *meter, CUstream stream, bool per_thread, bool launched)
{
    struct quiet quiet = quiet_begin();
    if (launched && record(meter->end, stream, per_thread) == CUDA_SUCCESS) {
        __atomic_fetch_add(&meters->pending, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&meter->state, METER_PENDING, __ATOMIC_RELEASE);
    } else {
        drop_events(meter);
        release(meter);
    }
    quiet_end(quiet);
}

static void end_pending(struct meters *meters, struct meter *meter)
{
    drop_events(meter);
    __atomic_fetch_sub(&meters->pending, 1, __ATOMIC_RELAXED);
    release(meter);
}

static void look_at(struct meters *meters, struct meter *meter, meter_learned *learned)
{
    enum { NANOSECONDS_A_MILLISECOND = 1000000 };
    float milliseconds;
    CUresult result = cuda.cuEventQuery(meter->end);
    if (result == CUDA_ERROR_NOT_READY)
        return;
    if (result == CUDA_SUCCESS && cuda.cuEventElapsedTime(&milliseconds, meter->begin, meter->end) == CUDA_SUCCESS &&
        __atomic_load_n(&meter->cost->key, __ATOMIC_RELAXED) == meter->key) {
        cost_learn(meter->cost, milliseconds > 0 ? (uint64_t)((double)milliseconds * NANOSECONDS_A_MILLISECOND) : 0);
        learned(meter->cost, meter->device);
    }
    end_pending(meters, meter);
}

void meters_collect(struct meters *meters, meter_learned *learned)
{
    if (__atomic_load_n(&meters->pending, __ATOMIC_RELAXED) == 0 || !lock_try(&meters->lock))
        return;
    struct quiet quiet = quiet_begin();
    for (unsigned i = 0; i < METERS; i++)
        if (__atomic_load_n(&meters->table[i].state, __ATOMIC_ACQUIRE) == METER_PENDING)
            look_at(meters, &meters->table[i], learned);
    quiet_end(quiet);
    lock_drop(&meters->lock);
}

void meters_forget(struct meters *meters)
{
    if (__atomic_load_n(&meters->pending, __ATOMIC_RELAXED) == 0)
        return;
    lock_take(&meters->lock);
    for (unsigned i = 0; i < METERS; i++)
        if (__atomic_load_n(&meters->table[i].state, __ATOMIC_ACQUIRE) == METER_PENDING)
            end_pending(meters, &meters->table[i]);
    lock_drop(&meters->lock);
}
