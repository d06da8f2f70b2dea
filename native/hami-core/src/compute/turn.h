/* A launch's turn: where the container has a compute cap, a launch waits until there is GPU time left, pays what it is known to cost,
 * and now and then is timed; where it was ordered to give way, it waits for that too. Nothing is locked while it waits. */
#ifndef TURN_H
#define TURN_H

#include "../container.h"
#include "meters.h"
#include "trim.h"

enum { QUIET_LAUNCHES = 16 };

struct compute {
    uint64_t looked_at; /* clock_coarse */
    struct lock looking;
    uint32_t metered;            /* launches cost something: a device is capped or ordered to give way, or others give way to us */
    uint32_t first;              /* others give way to us */
    uint32_t caps[REGION_DEVICES]; /* percent, 0 = none */
    unsigned only;               /* the region's index of the only device, DEVICE_NONE where there are several */
    struct paid_history paid[REGION_DEVICES];
    uint64_t unwatched[REGION_DEVICES]; /* nanoseconds launched while giving way since a launch whose end is watched */
    struct costs costs;
    struct meters meters;
};

struct turn {
    struct compute_bucket *bucket; /* NULL: nothing was paid */
    unsigned device;
    int64_t price;
    bool capped; /* the price was taken from the budget, else only counted */
    struct cost *cost;
    struct meter *meter;
    CUstream stream;
    bool per_thread;
    bool unpaid;
};

/* This thread's call launches on several devices, each with a turn. */
extern __thread bool turn_several;

/* Launches of this thread until the clock is read again. */
extern __thread unsigned turn_quiet;

void turn_look(void);
void turn_wait(struct turn *turn, uint64_t key);
void turn_settle(struct turn *turn, CUresult result);

/* Before a launch. An error is what the launch must return. */
static inline CUresult turn_take(struct turn *turn, uint64_t key, CUstream stream, bool per_thread)
{
    CUresult result = container_enter();
    turn->bucket = NULL;
    if (__builtin_expect(result != CUDA_SUCCESS || process->attachment != COUNTED, 0))
        return result;
    if (__builtin_expect(turn_quiet-- == 0, 0))
        turn_look();
    const struct compute *compute = __atomic_load_n(&process->compute, __ATOMIC_ACQUIRE);
    if (compute && __atomic_load_n(&compute->metered, __ATOMIC_RELAXED)) {
        turn->stream = stream;
        turn->per_thread = per_thread;
        turn_wait(turn, key);
    }
    return CUDA_SUCCESS;
}

/* After it. */
static inline CUresult turn_end(struct turn *turn, CUresult result)
{
    if (turn->bucket && (turn->meter || result != CUDA_SUCCESS))
        turn_settle(turn, result);
    return result;
}

/* Before contexts end: what is being timed in them ends too. */
static inline void turn_contexts_end(void)
{
    if (process->compute)
        meters_forget(&process->compute->meters);
}

#endif
