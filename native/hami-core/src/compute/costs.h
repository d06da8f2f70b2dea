/* What kernels and graphs take of the card when they have it for themselves, learned from a few launches of each. */
#ifndef COSTS_H
#define COSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../lock.h"

enum { COST_SAMPLES = 64, COSTS = 4096, COST_PLACES = 8 };

/* What a launch reads of it lies in one line of the cache. */
struct __attribute__((aligned(64))) cost {
    uint64_t key;       /* 0: free */
    uint64_t ns;        /* 0: not known yet */
    uint64_t begun;     /* when the launch began that is being timed, CLOCK_MONOTONIC, 0 = none is */
    uint32_t countdown; /* launches until the next one is timed */
    uint32_t interval;  /* from one to the next */
    uint32_t unpaid;    /* launches made while it was not known */
    uint32_t seen;      /* samples so far */
    uint64_t samples[COST_SAMPLES];
};

struct costs {
    struct lock lock;
    struct cost table[COSTS];
};

/* A launch of the same function with as many blocks and threads costs the same. Never 0. */
static inline uint64_t cost_key(uint64_t function, uint64_t blocks, uint64_t threads)
{
    uint64_t mixed = function * UINT64_C(0x9e3779b97f4a7c15) ^ blocks * UINT64_C(0xbf58476d1ce4e5b9) ^
                     threads * UINT64_C(0x94d049bb133111eb);
    return (mixed ^ mixed >> 32) | 1;
}

/* An entry for a key that has none, or that of another thread that was quicker. When all its places are taken, one of them is forgotten. */
struct cost *costs_make(struct costs *costs, uint64_t key);

static inline struct cost *cost_place(struct costs *costs, uint64_t key, unsigned place)
{
    return &costs->table[((key >> 1) + place) & (COSTS - 1)];
}

/* NULL: it has none. */
static inline struct cost *costs_known(struct costs *costs, uint64_t key)
{
    for (unsigned place = 0; place < COST_PLACES; place++) {
        struct cost *cost = cost_place(costs, key, place);
        if (__atomic_load_n(&cost->key, __ATOMIC_ACQUIRE) == key)
            return cost;
    }
    return NULL;
}

static inline struct cost *costs_find(struct costs *costs, uint64_t key)
{
    struct cost *cost = costs_known(costs, key);
    return cost ? cost : costs_make(costs, key);
}

static inline uint32_t cost_countdown(const struct cost *cost)
{
    return __atomic_load_n(&cost->countdown, __ATOMIC_RELAXED);
}

/* Whether this launch is to be timed: the first ones, then often enough to follow, and seldom enough to cost nothing. */
static inline bool cost_is_due(struct cost *cost)
{
    uint32_t left = cost_countdown(cost);
    __atomic_store_n(&cost->countdown, left > 0 ? left - 1 : __atomic_load_n(&cost->interval, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    return left == 0;
}

/* Takes the right to time a launch from now on: one at a time. Who took it long ago may have left by siglongjmp. */
static inline bool cost_time(struct cost *cost, uint64_t now)
{
    const uint64_t long_ago = UINT64_C(10000000000);
    uint64_t begun = __atomic_load_n(&cost->begun, __ATOMIC_RELAXED);
    return (begun == 0 || (now > begun && now - begun > long_ago)) &&
           __atomic_compare_exchange_n(&cost->begun, &begun, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline void cost_timed(struct cost *cost)
{
    __atomic_store_n(&cost->begun, 0, __ATOMIC_RELEASE);
}

/* From now on the driver may mean something else by that name: old samples say nothing of it. The price stays until it was timed. */
static inline void cost_begin_anew(struct cost *cost)
{
    __atomic_store_n(&cost->seen, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->interval, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->countdown, 0, __ATOMIC_RELAXED);
}

/* Nanoseconds as far as they are to be relied on: the first launch of a kind may take much longer than the next. 0: not yet. */
static inline uint64_t cost_sure(const struct cost *cost)
{
    enum { SURE = 4 };
    return __atomic_load_n(&cost->seen, __ATOMIC_RELAXED) < SURE ? 0 : __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);
}

/* A launch took so many nanoseconds, by the time on the card between its beginning and its end. Whatever else had the card meanwhile is
 * in it; so the cost is the mean of those samples among the last that are near the smallest. One thread at a time. */
void cost_learn(struct cost *cost, uint64_t ns);

#endif
