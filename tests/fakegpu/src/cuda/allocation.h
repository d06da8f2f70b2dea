/* Physical memory of cuMemCreate. It lives as long as a handle, a mapping or a descriptor in any process. Locked. */
#pragma once

#include "../common/shared.h"
#include "driver.h"

struct multicast;

struct allocation {
    struct object object;
    struct device *device; /* NULL: the host's, which costs the device nothing */
    CUmemAllocationProp prop;
    uint64_t bytes;
    int fd;              /* where its data is, from `offset` on */
    uint64_t offset;
    bool shareable, own; /* a file in the shared folder; made by this process */
    struct shared shared;
    struct allocation *next_shareable;
    CUmemGenericAllocationHandle handle;
    unsigned handles, uses; /* uses: mappings, and bindings to multicast objects */
    struct multicast *multicast;
};

struct allocation *allocation_of(CUmemGenericAllocationHandle handle);
void allocation_use(struct allocation *allocation);
void allocation_drop_use(struct allocation *allocation);

/* Takes over `fd`, a descriptor of shared memory. NULL if it is none. */
struct allocation *allocation_import(int fd);

/* A new allocation that costs nothing, for objects that only stand for others. */
struct allocation *allocation_make_costless(uint64_t bytes);
