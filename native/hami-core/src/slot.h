/* Slots of a region: taking one, and giving back what the dead left in theirs.
 *
 * A slot is owned as long as its byte of usage.lock is held. The lock can be lost without dying (a program that closes every
 * descriptor), so a byte that could be taken is cross-checked with /proc where that can be seen. */
#ifndef SLOT_H
#define SLOT_H

#include "identity.h"
#include "region.h"

enum { SLOT_NONE = REGION_SLOTS };

/* Takes a free slot for this process, reaping on the way. SLOT_NONE: reason[REASON_BYTES] says why. */
unsigned slot_take(struct region *region, const struct identity *self, char *reason);

/* Gives the own slot back. */
void slot_drop(struct region *region, unsigned slot);

/* Gives back what the dead hold. Not for two threads of one process at once: record locks do not keep those apart.
 * True: something was given back. */
bool slot_reap(struct region *region, const struct identity *self);

/* Takes the lock byte of the own slot again, in case a closed descriptor dropped it. */
void slot_keep(struct region *region, unsigned slot, const struct identity *self);

#endif
