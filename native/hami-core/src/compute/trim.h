/* The slow correction. A learned cost may be wrong for good: kernels that run side by side, or longer than a time slice beside another
 * container's. Where NVML tells how long the card was busy for the container, prices follow until what is paid is what was used. */
#ifndef TRIM_H
#define TRIM_H

#include <stdbool.h>
#include <stdint.h>

#include "bucket.h"

enum { FACTOR_LEAST = FACTOR_ONE / 8, FACTOR_MOST = FACTOR_ONE * 4, PAID_MOMENTS = 64, PAID_PAUSE = 25000000 };

/* What had been paid at a few moments, since NVML tells of a window that is over. */
struct paid_history {
    unsigned count; /* ever */
    struct {
        uint64_t at;
        int64_t paid;
    } moments[PAID_MOMENTS];
};

/* At most every 25 ms; the last 64 are kept. */
void paid_note(struct paid_history *history, uint64_t now, int64_t paid);

/* Nanoseconds of GPU time that were paid between two times, as if paid evenly from moment to moment. False: not known that far back. */
bool paid_between(const struct paid_history *history, uint64_t from, uint64_t to, int64_t *paid);

/* The next factor after a window in which `busy` was used and `paid` was paid, both in nanoseconds of GPU time: the square root of what
 * would put it right at once, since launches of before and after the window are in both. */
uint64_t trim_factor(uint64_t factor, uint64_t busy, int64_t paid);

#endif
