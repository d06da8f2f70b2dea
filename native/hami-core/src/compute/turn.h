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
    uint32_t metered;            /* launches must be asked about: a device is capped or ordered to give way, or others give way to us */
    uint32_t first;              /* others give way to us */
    uint32_t capped;             /* `paying` is */
    struct extension_device *paying; /* the only device, if what is launched there costs something; NULL where there is more to ask */
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

/* Launches of this thread until the clock is read again, and what it said last. */
extern __thread unsigned turn_quiet;
extern __thread uint64_t turn_looked_at;

void turn_settle(struct turn *turn, CUresult result);

/* This thread's next launch needs nothing before or after it, as in most programs, which have no cap. False: ask turn_take. */
static inline bool turn_is_free(void)
{
    const struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
    const struct compute *compute = mine ? __atomic_load_n(&mine->compute, __ATOMIC_ACQUIRE) : NULL;
    if (__builtin_expect(!compute || __atomic_load_n(&compute->metered, __ATOMIC_RELAXED) || turn_quiet == 0, 0))
        return false;
    turn_quiet--;
    return true;
}

/* Before a launch. An error is what the launch must return. */
CUresult turn_take(struct turn *turn, uint64_t key, CUstream stream, bool per_thread);

/* After it. */
static inline CUresult turn_end(struct turn *turn, CUresult result)
{
    if (__builtin_expect(turn->meter || result != CUDA_SUCCESS, 0) && turn->bucket)
        turn_settle(turn, result);
    return result;
}

/* Before a graph ends, and before code does: what is launched by those names later is something else. */
void turn_graph_ends(uint64_t key);
void turn_functions_end(void);

/* Before contexts end: what is being timed in them ends too. */
static inline void turn_contexts_end(void)
{
    turn_functions_end();
    if (process->compute)
        meters_forget(&process->compute->meters);
}

#endif
