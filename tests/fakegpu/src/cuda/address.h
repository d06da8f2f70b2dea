/* What is at an address of the one address space that host and devices share. The lock is held. */
#pragma once

#include "arena.h"
#include "ranges.h"

struct address {
    struct arena *arena; /* or */
    struct range *range;
    uintptr_t start;
    size_t bytes;
    struct device *device; /* NULL for host memory */
    struct CUctx_st *context;
};

/* False if the driver knows of nothing there. */
bool address_find(uintptr_t address, struct address *found);
