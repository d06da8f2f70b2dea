/* What this process has allocated: from a device pointer to what was charged for it. */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

struct allocation {
    uint64_t pointer; /* 0: an empty place */
    uint64_t bytes;
    uint32_t device;
    uint32_t kind;
    void *context;
};

enum { ALLOCATION_STRIPES = 64 };

/* One of 64 tables, each with a lock of its own. All zero is an empty table. */
struct allocation_stripe {
    _Alignas(64) struct lock lock;
    uint32_t count;
    uint64_t places; /* a power of two, or 0 */
    struct allocation *table;
};

struct allocations {
    struct allocation_stripe stripes[ALLOCATION_STRIPES];
};

/* False: no memory to note it. */
bool allocations_add(struct allocations *allocations, struct allocation allocation);

/* Removes the entry of a pointer. False: it was never added. */
bool allocations_take(struct allocations *allocations, uint64_t pointer, struct allocation *taken);

#endif
