/* What the files of the driver share: its devices, its contexts, and one lock over all of them. */
#pragma once

#include "../common/config.h"
#include "../common/state.h"
#include "../common/timeline.h"
#include "arena.h"
#include "object.h"
#include "prototypes.h"

#include <pthread.h>

enum { CONTEXT_LIMITS = 7 };

struct CUctx_st {
    struct CUctx_st *stands_for; /* of a green context's: the primary one, which has all that follows but `next` and `id` */
    struct device *device;
    struct CUctx_st *next;
    unsigned long long id;
    unsigned flags, api_version;
    unsigned attached; /* by cuCtxAttach */
    bool primary, live;
    struct object *objects; /* that die with it */
    struct CUstream_st *legacy_stream, *thread_streams;
    uint64_t blocking_free_ns; /* when the last of its blocking streams is free, see queue.h */
    uint64_t charged_bytes;       /* for the context itself and its limits */
    size_t limit[CONTEXT_LIMITS]; /* by CUlimit */
    uint64_t requested_bytes;     /* by cuMemAlloc, before rounding */
    uint32_t peers;               /* devices whose memory it may reach, a bit each */
    uint32_t with_room[SMALL_CLASSES]; /* units of the arena that have a free block of that class */
};

struct graph_memory {
    struct graph_addresses *addresses; /* of allocation nodes; backing is counted below */
    uint64_t reserved, reserved_high, used, used_high;
};

struct device {
    struct device_config config;
    int state_index;
    struct arena arena;
    struct CUctx_st primary;
    unsigned primary_retained, primary_flags;
    struct CUmemPoolHandle_st *default_pool, *current_pool;
    struct graph_memory graph_memory;
    struct device_queue *queue;
};

struct driver {
    struct config config;
    struct attachment attachment;
    struct timeline timeline;
    struct device device[MAX_DEVICES]; /* in CUDA's order, visible ones only */
    int device_count;
};

extern struct driver driver;
extern pthread_mutex_t driver_lock;

/* init.c: CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of a process that had called it. */
CUresult driver_ready(void);

/*
 * enter.c: how a call begins and ends. Success means that the lock is held, and driver_leave gives it back. Unsafe calls
 * are those that a capture in another thread, or in this one, forbids and is spoilt by.
 */
enum safety { SAFE, UNSAFE };
#define driver_enter() driver_enter_as(__func__, SAFE)
#define driver_enter_unsafe() driver_enter_as(__func__, UNSAFE)
#define context_enter(context) context_enter_as(__func__, context, SAFE)
#define context_enter_unsafe(context) context_enter_as(__func__, context, UNSAFE)
#define device_enter(ordinal, device) device_enter_as(__func__, ordinal, device)
CUresult driver_enter_as(const char *call, enum safety safety);
CUresult context_enter_as(const char *call, struct CUctx_st **context, enum safety safety);
CUresult device_enter_as(const char *call, CUdevice ordinal, struct device **device);
CUresult driver_leave(CUresult result);

/* devices.c */
uint64_t device_capacity(const struct device *device);
uint64_t device_used(const struct device *device);
bool device_take(struct device *device, enum memory_kind kind, uint64_t bytes);
void device_give(struct device *device, enum memory_kind kind, uint64_t bytes);
void device_note_requested(struct device *device, int64_t change);
CUdevice device_ordinal(const struct device *device);

/* contexts.c */
CUresult context_current(struct CUctx_st **context);
bool context_is_live(const struct CUctx_st *context);

/* A live context, or the one that it stands for. NULL if it is neither. */
struct CUctx_st *context_of(const struct CUctx_st *handle);

/* What is made current for a green context. NULL: no memory. */
struct CUctx_st *context_view(struct CUctx_st *primary);
void context_view_end(struct CUctx_st *view);
CUresult context_open(struct CUctx_st *context, struct device *device, unsigned flags, unsigned api_version);
void context_close(struct CUctx_st *context);

/* primary.c */
CUresult primary_retain(struct device *device, struct CUctx_st **context);
CUresult primary_release(struct device *device);

/* address.c: memory that copies and fills reach at this address, or why there is none of that length. */
CUresult memory_at(CUdeviceptr address, size_t bytes, bool write, void **host);
