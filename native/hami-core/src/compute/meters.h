/* Events around launches, on the card's own time: pairs that tell what a launch took, and single ones that tell when it was done. */
#ifndef METERS_H
#define METERS_H

#include <stdbool.h>

#include "../driver_abi.h"
#include "../region_layout.h"
#include "costs.h"

enum { METERS = 64 };

enum meter_state { METER_FREE, METER_TAKEN, METER_PENDING };

struct meter {
    uint32_t state;
    unsigned device;
    uint64_t weight;   /* its part of `waiting`, in nanoseconds */
    struct cost *cost; /* NULL: only its end is watched */
    uint64_t key;
    CUevent begin, end;
    struct meter *below; /* of the same thread */
};

/* What this thread has begun and not ended. More than a call of its own at a time is what a handler left by siglongjmp. */
extern __thread struct meter *meters_own;

struct meters {
    struct lock lock; /* of those that are pending */
    uint32_t pending;
    uint64_t waiting[REGION_DEVICES]; /* nanoseconds of GPU time that lie on a card, as far as the end of them is watched */
    struct meter table[METERS];
};

/* Records the first event of a launch whose cost this thread may time (cost_time); without a cost only its end is watched for. NULL: it
 * cannot be done, and the right to time is given up. Signals must be held (signals.h). */
struct meter *meter_begin(struct meters *meters, struct cost *cost, unsigned device, CUstream stream, bool per_thread);

/* Counts nanoseconds of GPU time as lying on the card until the meter's launch is done. */
void meter_weigh(struct meters *meters, struct meter *meter, uint64_t ns);

/* Ends what this thread left without an end. */
void meters_abandon(struct meters *meters);

/* After the launch, or the attempt. */
void meter_end(struct meters *meters, struct meter *meter, CUstream stream, bool per_thread, bool launched);

/* Learns from the launches that have ended since, and has `learned` called for each. Does not wait for any. Signals must be held. */
typedef void meter_learned(struct cost *cost, unsigned device);
void meters_collect(struct meters *meters, meter_learned *learned);

/* Before a context ends, and its events with it. */
void meters_forget(struct meters *meters);

#endif
