#include "bucket.h"

#include <stdbool.h>

#include "../clock.h"

static void add(struct compute_bucket *bucket, uint64_t gained)
{
    int64_t before = bucket_balance(bucket), added;
    do {
        int64_t room = BUCKET_BURST - before;
        if (room <= 0)
            return;
        added = gained < (uint64_t)room ? (int64_t)gained : room;
    } while (!__atomic_compare_exchange_n(&bucket->balance, &before, before + added, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_fetch_add(&bucket->refilled, (uint64_t)added, __ATOMIC_RELAXED);
}

void bucket_refill(struct compute_bucket *bucket, uint64_t now, unsigned percent)
{
    uint64_t before = __atomic_load_n(&bucket->refilled_at, __ATOMIC_RELAXED);
    bool restarted = before > now + NANOSECONDS_A_SECOND;
    /* Who came between us and a later time has refilled up to there. */
    if ((before >= now && !restarted) ||
        !__atomic_compare_exchange_n(&bucket->refilled_at, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    if (before == 0)
        add(bucket, BUCKET_BURST);
    else if (!restarted)
        add(bucket, (now - before) / 100 * percent + (now - before) % 100 * percent / 100);
}

uint64_t bucket_wait(int64_t balance, unsigned percent)
{
    return balance > 0 ? 0 : ((uint64_t)-balance + 1) * 100 / percent + 1;
}
