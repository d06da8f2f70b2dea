/* Bringing the books up to date with the driver: what a memory pool or the graphs hold, and what contexts cost, changes without a
 * call that could be wrapped. */
#ifndef SETTLE_H
#define SETTLE_H

/* For a query: reads again what this process holds, on this device beside the rest what contexts cost. */
void settle_for_query(unsigned device);

/* Before a refusal: has the driver give back what is cached and unused on a device, then reads again. */
void settle_and_trim(unsigned device);

#endif
