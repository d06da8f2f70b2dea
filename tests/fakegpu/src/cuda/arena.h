/*
 * A card's address space for cuMemAlloc in this process, handed out in units of 2 MiB as the driver does: a block of
 * more than 1 MiB gets units of its own, smaller ones share a unit with others of their size class. Addresses are real
 * memory that costs nothing until it is written. The caller holds the driver's lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct CUctx_st;

enum { SMALL_CLASSES = 12 }; /* 512 bytes to 1 MiB */

struct unit;

struct arena {
    struct device *device;
    uintptr_t base;
    uint32_t units, free_head, highest_used;
    struct unit *unit;
};

/* Maps the address space; a second call does nothing. False if there is no room for it in this process. */
bool arena_open(struct arena *arena, struct device *device, uint64_t memory_bytes);

/* 0 if the card has too little left. */
uintptr_t arena_take(struct arena *arena, struct CUctx_st *context, size_t bytes);

/* False if no block starts there. */
bool arena_give(struct arena *arena, uintptr_t address);

void arena_give_context(struct arena *arena, struct CUctx_st *context);

/* The block around an address. False if there is none. */
bool arena_find(const struct arena *arena, uintptr_t address, uintptr_t *start, size_t *bytes);
struct CUctx_st *arena_context(const struct arena *arena, uintptr_t address);

/* Notes that the block was written, so that its memory goes back to the system when it is freed. */
void arena_touch(struct arena *arena, uintptr_t address);
