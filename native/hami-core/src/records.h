/* What this process holds of the driver, by the driver's name for it (a device pointer, a handle): what was charged for it. */
#ifndef RECORDS_H
#define RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

#pragma GCC visibility push(hidden)

struct record {
    uint64_t key; /* 0: an empty place */
    uint64_t bytes;
    uint32_t device;
    uint32_t kind;
    uint64_t owner; /* what it ends with, such as a context; or a number of references */
};

enum { RECORD_STRIPES = 64 };

/* One of 64 tables, each with a lock of its own. All zero is an empty table. */
struct record_stripe {
    _Alignas(64) struct lock lock;
    uint64_t count;
    uint64_t places; /* a power of two, or 0 */
    struct record *table;
};

struct records {
    struct record_stripe stripes[RECORD_STRIPES];
};

/* Each field in a register: a record that is put together in memory and copied from there waits for its own stores. */
bool records_put(struct records *records, uint64_t key, uint64_t bytes, uint32_t device, uint32_t kind, uint64_t owner);

/* False: no memory to note it. */
static inline bool records_add(struct records *records, struct record record)
{
    return records_put(records, record.key, record.bytes, record.device, record.kind, record.owner);
}

/* Removes a record. False: there is none. */
bool records_take(struct records *records, uint64_t key, struct record *taken);

/* Copies a record. False: there is none. */
bool records_find(struct records *records, uint64_t key, struct record *found);

/* Adds to the number of references, in `owner`; the record goes when that is 0. *after is the record as it is then.
 * False: there is none. */
bool records_refer(struct records *records, uint64_t key, int change, struct record *after);

/* Removes any one record of this owner. False: there is none left. */
bool records_take_of(struct records *records, uint64_t owner, struct record *taken);

#pragma GCC visibility pop

#endif
