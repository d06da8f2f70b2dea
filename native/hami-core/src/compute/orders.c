#include "orders.h"

#include "../clock.h"

enum order order_of(uint64_t word, uint64_t now)
{
    uint64_t given = word & ~(uint64_t)ORDER_BITS, kind = word & ORDER_BITS;
    /* The two clocks are read on two processors; a time far ahead is of before a restart of the machine. */
    bool valid = given <= now ? now - given <= ORDER_VALID : given - now < NANOSECONDS_A_SECOND;
    return !valid ? ORDER_NONE : kind < ORDER_HOLD ? (enum order)kind : ORDER_HOLD;
}

bool order_stops(enum order order, uint64_t ns, uint64_t waiting, uint64_t free)
{
    bool fits = waiting + ns <= ORDER_AT_MOST;
    switch (order) {
    case ORDER_NONE: return false;
    case ORDER_BOUNDED: return !fits && waiting > 0;
    case ORDER_SHORT: return !fits && (waiting > 0 || ns > free);
    default: return true;
    }
}
