/* The slow correction. A learned cost may be wrong for good: kernels that run side by side, or longer than a time slice beside another
 * container's. Where NVML tells how busy the container kept the card, prices follow. */
#ifndef TRIM_H
#define TRIM_H

#include <stdint.h>

#include "bucket.h"

enum { FACTOR_LEAST = FACTOR_ONE / 8, FACTOR_MOST = FACTOR_ONE * 4 };

/* The next factor after a second in which the card was busy for the container by `busy` percent, at a cap of `percent`:
 * the square root of what would put it right at once, since the figures are a second old. */
uint64_t trim_factor(uint64_t factor, unsigned busy, unsigned percent);

#endif
