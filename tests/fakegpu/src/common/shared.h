/*
 * Memory that more than one process may hold: exported allocations and blocks with an IPC handle. Each is a sparse file
 * in the folder "<state>.shared", named by number, device and size. Whoever holds it has it open with a lock that belongs
 * to the open file description, so the lock goes when the last copy of the descriptor is closed, in whatever process and
 * by whatever death. As long as somebody holds it, its bytes count as used on the device: as part of the process that
 * made it while that one holds it, and of nobody's afterwards.
 */
#pragma once

#include "state.h"

struct shared {
    uint64_t id;
    int device; /* as the state numbers them */
    uint64_t bytes;
};

/* Makes one, charged to the device. A descriptor that holds it; -1 if the device or the host has too little. */
int shared_make(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes,
                struct shared *shared);

/* Makes one of memory that this process holds already. */
int shared_convert(const struct attachment *attachment, int device, uint64_t bytes, struct shared *shared);

/* The opposite: its bytes are this process's own again, before it closes the descriptor. */
void shared_return(const struct attachment *attachment, int device, uint64_t bytes);

/* Another holder. -1 if nobody holds it any more. */
int shared_open(const struct attachment *attachment, const struct shared *shared);

/* What a descriptor, from this process or another, holds. False if it is none of these. */
bool shared_identify(const struct attachment *attachment, int fd, struct shared *shared);

/* Bytes of a device that somebody holds so. */
uint64_t shared_used(const struct attachment *attachment, int device);

/* Tells that this process, which made it, gives it up. */
void shared_disown(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes);
