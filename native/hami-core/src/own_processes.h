/* The processes of this container on a card, as its region has them. */
#ifndef OWN_PROCESSES_H
#define OWN_PROCESSES_H

#include "container.h"

struct own_process {
    uint32_t pid;
    uint64_t bytes;
};

/* Those that live and hold memory of the device; how many. list may be NULL. *sum is what they hold together. */
unsigned own_processes(const struct sight *sight, unsigned device, struct own_process list[REGION_SLOTS], uint64_t *sum);

#endif
