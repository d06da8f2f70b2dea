/* What the files of the driver share: its devices, its contexts, and one lock over all of them. */
#pragma once

#include "../common/config.h"
#include "../common/state.h"
#include "arena.h"
#include "prototypes.h"

#include <pthread.h>

struct CUctx_st {
    struct device *device;
    struct CUctx_st *next;
    unsigned long long id;
    unsigned flags, api_version;
    unsigned attached; /* by cuCtxAttach */
    bool primary, live;
    uint64_t charged_bytes; /* for the context itself */
    uint32_t with_room[SMALL_CLASSES]; /* units of the arena that have a free block of that class */
};

struct device {
    struct device_config config;
    int state_index;
    struct arena arena;
    struct CUctx_st primary;
    unsigned primary_retained, primary_flags;
};

struct driver {
    struct config config;
    struct attachment attachment;
    struct device device[MAX_DEVICES]; /* in CUDA's order, visible ones only */
    int device_count;
};

extern struct driver driver;
extern pthread_mutex_t driver_lock;

/* init.c: CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of a process that had called it. */
CUresult driver_ready(void);

/* devices.c */
CUresult device_get(CUdevice ordinal, struct device **device);
uint64_t device_capacity(const struct device *device);
uint64_t device_used(const struct device *device);
bool device_take(struct device *device, enum memory_kind kind, uint64_t bytes);
void device_give(struct device *device, enum memory_kind kind, uint64_t bytes);

/* contexts.c: the context current to this thread, or why there is none. */
CUresult context_current(struct CUctx_st **context);
bool context_is_live(const struct CUctx_st *context);
CUresult context_open(struct CUctx_st *context, struct device *device, unsigned flags, unsigned api_version);
void context_close(struct CUctx_st *context);

/* memory.c: the host's view of a device range, or why it is no range of one block. The lock is held. */
CUresult memory_at(CUdeviceptr address, size_t bytes, bool write, void **host);
