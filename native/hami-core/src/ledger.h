/* The books of one container: what each process and all together have charged, per device.
 *
 * A step is one compare-and-swap of the container's total, tagged with who made it and which of its steps it is. The lane of
 * that process says what the step was, so that whoever finds its owner dead can settle it. The argument for why this is exact is
 * in README.md, "The books". */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "region_layout.h"

#pragma GCC visibility push(hidden)

/* Charges `bytes` to a slot if the container's total stays within `limit_bytes`. False: refused, nothing changed.
 * At most one thread at a time may step for the same slot and device. */
bool ledger_charge(struct extension *books, unsigned slot, unsigned device, uint64_t bytes, uint64_t limit_bytes);

/* Gives `bytes` back that the same slot has charged. Never takes a total below zero. */
void ledger_release(struct extension *books, unsigned slot, unsigned device, uint64_t bytes);

/* Settles a step that its owner did not finish and gives back all that the slot holds on the device. Only for the holder of
 * the slot's lock byte. May be killed anywhere and begun again by the next holder. */
void ledger_recover(struct extension *books, unsigned slot, unsigned device);

/* Number of the last step that a slot has settled. */
uint64_t ledger_steps(const struct extension *books, unsigned slot, unsigned device);

/* Bytes charged on a device by the whole container, and by one slot. */
uint64_t ledger_total(const struct extension *books, unsigned device);
uint64_t ledger_held(const struct extension *books, unsigned slot, unsigned device);

#pragma GCC visibility pop

#endif
