/* Pools of stream-ordered memory. The lock is held. */
#pragma once

#include "../common/shared.h"
#include "driver.h"

struct CUmemPoolHandle_st {
    struct object object;
    struct CUmemPoolHandle_st *next; /* all pools of this process */
    struct device *device;
    CUmemPoolProps props;
    struct arena arena;
    uint64_t taken;                    /* of the arena: what is in use in whole units */
    uint64_t reserved, reserved_high;  /* of the device */
    uint64_t used, used_high;          /* by the program, in the driver's steps */
    uint64_t threshold;
    int reuse[4]; /* by attribute */
    unsigned live;
    struct shared shared;
    int fd;         /* that stands for it in other processes; -1 */
    bool imported;  /* another process's: nothing is allocated from it here */
    bool destroyed; /* lives on until its last block is freed */
};

CUresult pool_free(CUdeviceptr address);

/* What waiting for a device lets its pools do: give back what they hold beyond their release thresholds. */
void pools_shrink(struct device *device);

/* Ends all pools of a device with its primary context. */
void pools_end(struct device *device);

/* Another process's pool. */
CUresult pool_import(struct device *device, const CUmemPoolProps *props, CUmemoryPool *pool);

/* The pool that a device was made with, and the one that cuMemAllocAsync takes from now. */
CUresult pool_default(struct device *device, CUmemoryPool *pool);
CUresult pool_current(struct device *device, CUmemoryPool *pool);

bool pool_is(CUmemoryPool pool);

/* The pool that a block is of, or NULL. */
CUmemoryPool pool_of(CUdeviceptr address);

/* The beginning of a call about a pool. */
#define pool_enter(pool, safety) pool_enter_as(__func__, pool, safety)
CUresult pool_enter_as(const char *call, CUmemoryPool pool, enum safety safety);
