/* Stream-ordered memory. A pool is charged with what it holds of the card, not with what the program has of it. */
#ifndef POOLS_H
#define POOLS_H

#include "../records.h"

/* Reads again what each pool holds: it shrinks at any synchronisation, unseen. */
void pools_settle(void);

/* Has the pools of a device give back what they hold and nobody uses. */
void pools_trim(unsigned device);

/* A context of a device is gone, and maybe pools with it, all that they held included. Those that were destroyed and lived on for
 * their pointers, for which the driver does not answer, are gone with the primary one. */
void pools_may_be_gone(unsigned device, bool primary);

/* A pointer of a pool was freed, by whichever function. */
void pool_freed(const struct record *record);

#endif
