/* The region file: making, checking, mapping. docs/region.md has the rules. */
#ifndef REGION_H
#define REGION_H

#include <stdbool.h>
#include <sys/types.h>

#include "limits.h"
#include "region_layout.h"

struct region {
    struct region_file *file; /* mapped, NULL before region_open */
    int lock_file;            /* usage.lock, opened once and never closed: closing any descriptor of it drops every lock */
    dev_t device;
    ino_t inode;
    dev_t lock_device;
    ino_t lock_inode;
    bool managed;
    bool in_use; /* region_open failed because others use the file in a way that ours would not fit */
    char path[PATH_BYTES];
};

#define REGION_INITIALIZER {.lock_file = -1}

/* Opens the region at `path`, making or re-making it where that is allowed, and maps it. False: reason[REASON_BYTES] says why. */
bool region_open(struct region *region, const char *path, bool managed, char *reason);

/* Opens usage.lock again if the program has closed it. False: reason. */
bool region_keep_lock_file(struct region *region, char *reason);

/* The gate: shared to take a slot, exclusive to change what all share. False: reason names who holds it. */
bool region_gate(struct region *region, bool exclusive, char *reason);
void region_gate_drop(struct region *region);

/* Whether the file at the region's path is still this one. If not, new processes count for themselves. */
bool region_in_place(const struct region *region);

/* Whether the first bytes are a region with an extension of this version. */
bool region_is_ours(const struct region_file *file);

/* Remembers the path and opens usage.lock if it is there, so that it can be asked who is attached. */
void region_watch(struct region *region, const char *path);

/* A region of this version, mapped for reading; NULL if there is none. */
const struct region_file *region_map_to_read(const char *path);

#endif
