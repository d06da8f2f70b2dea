/* KAI-Scheduler's arithmetic from a request to a limit, as its scheduler and its binder do it, in float64 where they do.
 *
 * Sources: pkg/scheduler/api/node_info (getNodeGpuMemory, getGpuMemoryFractionalOnNode), pkg/scheduler/cache
 * (createBindRequest, portion as "%.2f") and pkg/binder/plugins/hamicore (calculateCudaDeviceMemoryLimit). */
#ifndef KAI_H
#define KAI_H

#include <stdbool.h>
#include <stdint.h>

#include "text.h"

enum { KAI_WHOLE_PORTION = 100 };
#define MIB (UINT64_C(1) << 20)

/* A decimal between 0 and 1 as it was written: digits / 10^places. At most 18 places are kept. */
struct fraction {
    uint64_t digits;
    unsigned places;
};

/* `0.25`, `.5`, `1`: digits with at most one point. False: anything else, 0, or above 1. */
bool fraction_parse(struct span text, struct fraction *fraction);

/* The exact product, rounded down to a byte, but at least 1. */
uint64_t fraction_of(struct fraction fraction, uint64_t bytes);

/* The portion in hundredths that the scheduler gives for a fraction: two decimals of the float64, halves to even. */
unsigned kai_portion_of_fraction(struct fraction fraction);

/* The portion in hundredths for `gpu-memory` on a card with this nvidia.com/gpu.memory label: the ceiling of the request over the
 * label floored to a hundred. Not above a whole card, since KAI does not schedule that. */
unsigned kai_portion_of_memory(uint64_t request_mib, uint64_t label_mib);

/* The limit in MiB that the binder writes for a portion. */
uint64_t kai_limit_mib(unsigned portion, uint64_t label_mib);

#endif
