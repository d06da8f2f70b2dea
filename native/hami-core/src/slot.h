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

/* Tells the process in a slot from those that had it before: a monitor that wrote of one of them must not be believed of this one. */
static inline uint32_t slot_mark(const struct extension_slot *slot)
{
    const uint64_t spread = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = ((slot->image * spread ^ slot->start_time) * spread ^ slot->pid) * spread;
    return (uint32_t)(mixed >> 32);
}

/* Whether a process has the slot, in this image of it: one that exec replaced is another. */
bool slot_is_of(const struct extension_slot *slot, const struct identity *self);

/* Takes the lock byte of the own slot again, in case a closed descriptor dropped it. */
void slot_keep(struct region *region, unsigned slot, const struct identity *self);

#endif
