/* This process in its container: which limits hold, which region and slot it has. Everything here begins at cuInit, or at the first
 * call that needs it. */
#ifndef CONTAINER_H
#define CONTAINER_H

#include <stddef.h>

#include "driver_abi.h"
#include "identity.h"
#include "limits.h"
#include "memory/holdings.h"
#include "region.h"
#include "slow.h"

#pragma GCC visibility push(hidden)

enum attachment {
    NOT_ATTACHED, /* must be zero: what a child of fork reads */
    COUNTED,
    UNCOUNTED, /* not managed, no limit set, no region possible: nothing to enforce */
};

/* What belongs to one process and must not survive fork. The kernel hands a child a zeroed page (MADV_WIPEONFORK). */
struct process {
    uint32_t attachment;
    uint32_t owner; /* getpid() where the kernel cannot wipe, else 0 */
    struct lock starting;
    struct lock reaping;
    unsigned slot;
    struct lock lanes[REGION_DEVICES];
    struct holdings holdings;
    struct compute *compute; /* NULL before the first launch */
};

struct container {
    bool managed;
    char name[CONTAINER_NAME_BYTES]; /* of the request, empty if not managed */
    struct region region;
    struct identity self;
};

extern struct process *process;
extern struct container container;

CUresult container_start(void);

/* CUDA_SUCCESS once this process counts. CUDA_ERROR_NOT_PERMITTED where its share cannot be enforced (a line said why), else the
 * driver's own error. */
static inline CUresult container_enter(void)
{
    const struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
    if (__builtin_expect(mine && __atomic_load_n(&mine->attachment, __ATOMIC_ACQUIRE) != NOT_ATTACHED && !mine->owner, 1))
        return CUDA_SUCCESS;
    return container_start();
}

/* Bytes that the container may use on a device, LIMIT_NONE without limit. Reads the limit files again at most once a second. */
uint64_t container_limit(unsigned device);

/* Reads the limit files again now. */
void container_refresh(void);

/* This process's PID as the node counts PIDs, 0 where it is not known: in the first PID namespace its own, else what a monitor
 * wrote into its slot. */
uint32_t container_host_pid(void);

/* The same of the process in a slot. */
uint32_t container_host_pid_of(unsigned slot);

/* Percent of a device that the container may use, by its limits as they were read last; 100 and more is all of it. */
uint64_t container_cores(unsigned device);

/* Whether its limits give it priority 0, for which others on its cards give way. */
bool container_is_first(void);

/* Says in the region whether this process's overhead is an estimate. */
void container_mark_estimated(bool estimated);

/* What a process sees that only asks NVML: it need not be attached, and does not become so. */
struct sight {
    const struct region_file *file; /* NULL: there is no region yet */
    bool borrowed;
    bool managed;
    struct limit_files files;
};

/* False: the limits cannot be read, a line said why. Else container_look_away when done. */
bool container_look(struct sight *sight);
void container_look_away(const struct sight *sight);

/* The limit of a card, by its index in the region (DEVICE_NONE: not there), its index in NVML and its memory. False: it is not
 * valid, a line said why. */
bool sight_limit(const struct sight *sight, unsigned index, unsigned nvml_index, struct card card, uint64_t *limit);

#pragma GCC visibility pop

#endif
