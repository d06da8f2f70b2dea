/*
 * A device in time. One process has it at a time; those with work take turns of 2 ms, or have it for good while they are
 * alone. A process counts its work on an axis of its own, the device time that it was given, and this tells how that axis
 * lies in time. Nobody runs the device: whoever asks brings it up to date under a lock that a holder's death ends, so a
 * kill in the middle can misplace one turn and nothing more.
 */
#pragma once

#include "config.h"
#include "state.h"

struct timeline {
    struct timeline_file *file; /* NULL: kernels take no time */
    const struct attachment *attachment;
    uint64_t slice_ns;
};

/* Opens it as the configuration says, and sets the clock. False, with a line on stderr, if that cannot be done. */
bool timeline_open(struct timeline *timeline, const struct config *config, const struct attachment *attachment);

/* This process's place on a device, made when first asked for; -1 if there is none left. */
int timeline_place(struct timeline *timeline, int device);

/* Work up to this point of the axis is submitted. */
void timeline_submit(struct timeline *timeline, int device, int place, uint64_t wanted_ns);

/* How far the device came on the process's axis. */
uint64_t timeline_done(struct timeline *timeline, int device, int place);

/* When it will be at a point of the axis, if nobody submits anything more. */
uint64_t timeline_predict(struct timeline *timeline, int device, int place, uint64_t work_ns);

/* When it was there. */
uint64_t timeline_when(struct timeline *timeline, int device, int place, uint64_t work_ns);

/* Gives up what was submitted and not done. */
void timeline_drop(struct timeline *timeline, int device, int place);

/* How long the device worked between two times, for anyone or for the process of a slot; and whether that one did. */
uint64_t timeline_busy(struct timeline *timeline, int device, uint64_t from_ns, uint64_t to_ns);
bool timeline_busy_for(struct timeline *timeline, int device, int slot, uint64_t from_ns, uint64_t to_ns,
                       uint64_t *busy_ns);
