/* What a monitor orders where a container of priority 0 shares the card (docs/compute-limit.md). */
#ifndef ORDERS_H
#define ORDERS_H

#include <stdbool.h>
#include <stdint.h>

enum order {
    ORDER_NONE,
    ORDER_BOUNDED, /* little may wait on the card */
    ORDER_SHORT,   /* the same, and no launch that takes longer, unless there will be time for it */
    ORDER_HOLD,    /* launch nothing */
    ORDER_BITS = 7,
};

/* Nanoseconds of GPU time that one who gives way may have on the card: who comes first waits for that at most. */
#define ORDER_AT_MOST UINT64_C(500000)

/* An order that is older is none: whoever gave it may be gone. */
#define ORDER_VALID UINT64_C(2000000000)

/* What the region's word means at a time of CLOCK_MONOTONIC. */
enum order order_of(uint64_t word, uint64_t now);

/* Whether a launch of `ns` has to wait, with `waiting` on the card already and so much time `free` until one of priority 0 is expected. */
bool order_stops(enum order order, uint64_t ns, uint64_t waiting, uint64_t free);

#endif
