/* What one process holds of the driver's memory, by the way it was taken. All zero holds nothing; a child of fork begins so. */
#ifndef HOLDINGS_H
#define HOLDINGS_H

#include "../charge.h"
#include "../records.h"
#include "../region_layout.h"

struct pool;

/* Device memory without an API that tells its size: contexts, modules, stacks and heaps. See overhead.h. */
struct overhead {
    struct lock lock;
    unsigned contexts;
    uint64_t known;
    uint64_t estimated; /* of the known */
    uint64_t estimate;  /* of each context that was estimated, and what it was found to take */
    uint64_t taken;
    uint64_t found;
    struct charge charge; /* of both */
};

/* A range of addresses, of a multicast object or of a sparse array, and the memory behind it. */
struct mapping {
    uint64_t space; /* 0: addresses, else the multicast object or the array */
    uint64_t start; /* see virtual.c */
    uint64_t length;
    uint64_t handle;
};

struct mappings {
    struct lock lock;
    size_t count;
    size_t room;
    struct mapping *sorted; /* by space, then start */
};

struct holdings {
    struct records linear;   /* device pointers; owner: the context, or for pooled memory the pool */
    struct records arrays;   /* array handles; owner: the context */
    struct records handles;  /* of memory and multicast objects; kind: see virtual.c; owner: references */
    struct records contexts; /* contexts; bytes: what the overhead knows; owner: references */
    uint32_t contexts_ended;
    struct records modules;  /* modules, libraries, and contexts whose limits were raised; bytes: what the overhead knows */
    struct records graphs;   /* executable graphs with memory nodes; bytes: of those */
    struct mappings mappings;
    struct lock pools_lock;
    struct pool *pools;
    struct lock primary_lock;
    CUcontext primary[REGION_DEVICES];
    struct overhead overhead[REGION_DEVICES];
    uint64_t managed[REGION_DEVICES]; /* bytes of managed memory, and one for each pool of it */
    uint32_t growing[REGION_DEVICES]; /* calls of the driver that may just take more than is charged for them by now */
    struct lock graph_lock[REGION_DEVICES];
    struct charge graph_memory[REGION_DEVICES];
    uint64_t graph_pointers[REGION_DEVICES]; /* of it, in pointers that outlived the launch that took them */
};

#endif
