/* The budget of one device: nanoseconds of GPU time, refilled with the cap's part of the time that passes, shared by every process of
 * the container. Launches pay beforehand and may leave a debt, which is waited for by whoever comes next; so the mean holds, whatever
 * one launch costs. No lock: who is killed between two steps costs the container a refill, never more. */
#ifndef BUCKET_H
#define BUCKET_H

#include "../region_layout.h"

/* What an idle container saves up, in nanoseconds of GPU time. */
#define BUCKET_BURST INT64_C(10000000)

enum { FACTOR_ONE = 65536 };

/* Adds what `percent` of the time since the last refill is worth. Times are nanoseconds of CLOCK_MONOTONIC; one that lies in the
 * future is of before a restart of the machine and counts as now. */
void bucket_refill(struct compute_bucket *bucket, uint64_t now, unsigned percent);

static inline int64_t bucket_balance(const struct compute_bucket *bucket)
{
    return __atomic_load_n(&bucket->balance, __ATOMIC_RELAXED);
}

/* The cost as the container pays it. */
static inline int64_t bucket_price(const struct compute_bucket *bucket, uint64_t cost)
{
    uint64_t factor = __atomic_load_n(&bucket->factor, __ATOMIC_RELAXED);
    return (int64_t)(factor ? cost * factor / FACTOR_ONE : cost);
}

/* All that was ever paid. */
static inline int64_t bucket_paid(const struct compute_bucket *bucket)
{
    return (int64_t)__atomic_load_n(&bucket->refilled, __ATOMIC_RELAXED) - bucket_balance(bucket);
}

/* What is paid where there is no cap: it counts and is not owed. */
static inline void bucket_count(struct compute_bucket *bucket, int64_t price)
{
    __atomic_fetch_add(&bucket->refilled, (uint64_t)price, __ATOMIC_RELAXED);
}

/* A negative price gives back. */
static inline void bucket_pay(struct compute_bucket *bucket, int64_t price)
{
    __atomic_fetch_sub(&bucket->balance, price, __ATOMIC_RELAXED);
}

/* Nanoseconds until the balance is above 0 at this cap. */
uint64_t bucket_wait(int64_t balance, unsigned percent);

#endif
