#define _GNU_SOURCE
#include "meters.h"

#include "../driver.h"
#include "../message.h"
#include "../quiet.h"
#include "../signals.h"

__thread struct meter *meters_own;

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

static CUresult make_event(CUevent *event, bool timed)
{
    enum { WITHOUT_TIME = 2 }; /* CU_EVENT_DISABLE_TIMING */
    return cuda.cuEventCreate(event, timed ? 0 : WITHOUT_TIME);
}

static bool make_events(struct meter *meter)
{
    bool timed = meter->cost != NULL;
    if (timed && make_event(&meter->begin, true) != CUDA_SUCCESS)
        return false;
    if (make_event(&meter->end, timed) == CUDA_SUCCESS)
        return true;
    if (timed)
        cuda.cuEventDestroy_v2(meter->begin);
    return false;
}

static void drop_events(struct meter *meter)
{
    if (meter->cost)
        cuda.cuEventDestroy_v2(meter->begin);
    cuda.cuEventDestroy_v2(meter->end);
}

static void release(struct meters *meters, struct meter *meter)
{
    __atomic_fetch_sub(&meters->waiting[meter->device], meter->weight, __ATOMIC_RELAXED);
    if (meter->cost)
        cost_timed(meter->cost);
    __atomic_store_n(&meter->state, METER_FREE, __ATOMIC_RELEASE);
}

static bool begin_events(struct meter *meter, CUstream stream, bool per_thread)
{
    struct quiet quiet = quiet_begin();
    struct visit visit = visit_context_of(stream, per_thread);
    bool made = make_events(meter);
    bool begun = made && (!meter->cost || record(meter->begin, stream, per_thread) == CUDA_SUCCESS);
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
    if (meter) {
        meter->cost = cost;
        meter->key = cost ? __atomic_load_n(&cost->key, __ATOMIC_RELAXED) : 0;
        meter->device = device;
        meter->weight = 0;
        if (!begin_events(meter, stream, per_thread)) {
            say_untimed();
            release(meters, meter);
            meter = NULL;
        } else {
            meter->below = meters_own;
            meters_own = meter;
        }
    } else if (cost) {
        cost_timed(cost);
    }
    return meter;
}

static void disown(const struct meter *meter)
{
    struct meter **at = &meters_own;
    while (*at && *at != meter)
        at = &(*at)->below;
    if (*at)
        *at = meter->below;
}

void meters_abandon(struct meters *meters)
{
    sigset_t held = signals_hold();
    while (meters_own) {
        struct meter *meter = meters_own;
        meters_own = meter->below;
        /* In a child of fork it may be one of the parent's. */
        if (meter >= meters->table && meter < meters->table + METERS) {
            drop_events(meter);
            release(meters, meter);
        }
    }
    signals_release(&held);
}

void meter_weigh(struct meters *meters, struct meter *meter, uint64_t ns)
{
    meter->weight += ns;
    __atomic_fetch_add(&meters->waiting[meter->device], ns, __ATOMIC_RELAXED);
}

void meter_end(struct meters *meters, struct meter *meter, CUstream stream, bool per_thread, bool launched)
{
    sigset_t held = signals_hold();
    struct quiet quiet = quiet_begin();
    disown(meter);
    if (launched && record(meter->end, stream, per_thread) == CUDA_SUCCESS) {
        __atomic_fetch_add(&meters->pending, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&meter->state, METER_PENDING, __ATOMIC_RELEASE);
    } else {
        drop_events(meter);
        release(meters, meter);
    }
    quiet_end(quiet);
    signals_release(&held);
}

static void end_pending(struct meters *meters, struct meter *meter)
{
    drop_events(meter);
    __atomic_fetch_sub(&meters->pending, 1, __ATOMIC_RELAXED);
    release(meters, meter);
}

static void look_at(struct meters *meters, struct meter *meter, meter_learned *learned)
{
    enum { NANOSECONDS_A_MILLISECOND = 1000000 };
    float milliseconds;
    CUresult result = cuda.cuEventQuery(meter->end);
    if (result == CUDA_ERROR_NOT_READY)
        return;
    if (meter->cost && result == CUDA_SUCCESS && cuda.cuEventElapsedTime(&milliseconds, meter->begin, meter->end) == CUDA_SUCCESS &&
        __atomic_load_n(&meter->cost->key, __ATOMIC_RELAXED) == meter->key) {
        cost_learn(meter->cost, milliseconds > 0 ? (uint64_t)((double)milliseconds * NANOSECONDS_A_MILLISECOND) : 0);
        learned(meter->cost, meter->device);
    }
    end_pending(meters, meter);
}

void meters_collect(struct meters *meters, meter_learned *learned)
{
    if (__atomic_load_n(&meters->pending, __ATOMIC_RELAXED) == 0)
        return;
    if (!lock_try(&meters->lock))
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
