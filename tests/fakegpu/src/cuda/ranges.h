/* Memory that does not come from an arena: managed, host, virtual, opened from another process. The lock is held. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct CUctx_st;

enum range_kind {
    RANGE_MANAGED,
    RANGE_HOST,       /* page-locked by the driver */
    RANGE_REGISTERED, /* the program's, page-locked */
    RANGE_VIRTUAL,    /* a mapped piece of an address reservation */
    RANGE_OPENED,     /* another process's, by an IPC handle */
    RANGE_EXTERNAL,   /* a buffer of imported memory */
    RANGE_LOW,        /* below 4 GiB, for the first ABI */
    RANGE_GLOBALS,    /* variables of a module */
};

struct range {
    uintptr_t start;
    size_t bytes;
    enum range_kind kind;
    struct device *device;
    struct CUctx_st *context; /* that it is freed with, or NULL */
    void *owner;              /* by kind: an allocation, an opened handle, … */
    uint64_t offset;          /* into the owner's memory */
    uint64_t resident_bytes;  /* of managed memory: charged to the device */
    unsigned flags, uses;
    bool reachable, writable;
};

/* NULL if the host has no memory. */
struct range *range_add(struct range range);
void range_remove(struct range *range);

/* The range around an address, or NULL. */
struct range *range_at(uintptr_t address);

/* The first range that ends after an address, or NULL; for walks over what overlaps an interval. */
struct range *range_from(uintptr_t address);

/* Calls `free` for each range of a context; it removes the range. */
void ranges_end(struct CUctx_st *context, void (*free_range)(struct range *range));
