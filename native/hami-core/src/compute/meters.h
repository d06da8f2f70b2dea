/* Timing launches by pairs of events on the card's own time. */
#ifndef METERS_H
#define METERS_H

#include <stdbool.h>

#include "../driver_abi.h"
#include "costs.h"

enum { METERS = 64 };

enum meter_state { METER_FREE, METER_TAKEN, METER_PENDING };

struct meter {
    uint32_t state;
    unsigned device;
    struct cost *cost;
    uint64_t key;
    CUevent begin, end;
};

struct meters {
    struct lock lock; /* of those that are pending */
    uint32_t pending;
    struct meter table[METERS];
};

/* Records the first event of a launch whose cost this thread may time (cost_time). NULL: it cannot be timed, and the right is given up. */
struct meter *meter_begin(struct meters *meters, struct cost *cost, unsigned device, CUstream stream, bool per_thread);

/* After the launch, or the attempt. */
void meter_end(struct meters *meters, struct meter *meter, CUstream stream, bool per_thread, bool launched);

/* Learns from the launches that have ended since, and has `learned` called for each. Does not wait for any. */
typedef void meter_learned(struct cost *cost, unsigned device);
void meters_collect(struct meters *meters, meter_learned *learned);

/* Before a context ends, and its events with it. */
void meters_forget(struct meters *meters);

#endif
