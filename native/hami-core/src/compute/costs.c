#define _GNU_SOURCE
#include "costs.h"

#include "../signals.h"

enum { FIRST_SAMPLES = 16, MOST_LAUNCHES = 4096, TIMED_EVERY_NS = 2000000 };

/* The smallest of 64 samples that scatter by 5 % lies 12 % below their mean, and the largest as much above it. */
enum { NEAR_PERCENT = 130 };

struct cost *costs_make(struct costs *costs, uint64_t key)
{
    struct cost *free = NULL, *found = NULL;
    sigset_t held = signals_hold();
    lock_take(&costs->lock);
    for (unsigned i = 0; i < COST_PLACES && !found; i++) {
        struct cost *cost = cost_place(costs, key, i);
        if (cost->key == key)
            found = cost;
        else if (cost->key == 0 && !free)
            free = cost;
    }
    if (!found) {
        found = free ? free : cost_place(costs, key, (key >> 40) % COST_PLACES);
        __atomic_store_n(&found->key, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->ns, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->begun, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->countdown, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->interval, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->unpaid, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->seen, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&found->key, key, __ATOMIC_RELEASE);
    }
    lock_drop(&costs->lock);
    signals_release(&held);
    return found;
}

static uint64_t mean_of_the_near(const uint64_t *samples, unsigned count)
{
    uint64_t least = UINT64_MAX, sum = 0, near = 0;
    for (unsigned i = 0; i < count; i++)
        least = samples[i] < least ? samples[i] : least;
    for (unsigned i = 0; i < count; i++) {
        if (samples[i] <= least * NEAR_PERCENT / 100) {
            sum += samples[i];
            near++;
        }
    }
    return sum / near;
}

static uint32_t launches_until_next(uint32_t seen, uint64_t ns)
{
    uint64_t launches = TIMED_EVERY_NS / ns;
    return seen < FIRST_SAMPLES ? 0 : launches < MOST_LAUNCHES ? (uint32_t)launches : MOST_LAUNCHES;
}

void cost_learn(struct cost *cost, uint64_t ns)
{
    uint32_t seen = __atomic_load_n(&cost->seen, __ATOMIC_RELAXED);
    cost->samples[seen++ % COST_SAMPLES] = ns ? ns : 1;
    __atomic_store_n(&cost->seen, seen, __ATOMIC_RELAXED);
    uint64_t mean = mean_of_the_near(cost->samples, seen > 0 && seen < COST_SAMPLES ? seen : COST_SAMPLES);
    __atomic_store_n(&cost->ns, mean, __ATOMIC_RELAXED);
    __atomic_store_n(&cost->interval, launches_until_next(seen, mean), __ATOMIC_RELAXED);
}
