/*
 * Address space of a card in this process, handed out in units of 2 MiB as the driver does: a block of more than 1 MiB
 * gets units of its own, smaller ones share a unit with others of their size class. Addresses are real memory that costs
 * nothing until it is written. Who opens an arena says what units cost the card. The lock is held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device;
struct CUctx_st;

enum { SMALL_CLASSES = 12, ARENA_UNIT = 2 << 20 }; /* size classes: 512 bytes to 1 MiB */

enum arena_kind { ARENA_LINEAR, ARENA_POOL, ARENA_GRAPH };

struct unit;

struct arena {
    enum arena_kind kind;
    struct device *device;
    void *owner; /* the pool of a pool's arena */
    bool (*take)(struct arena *arena, uint64_t bytes);
    void (*give)(struct arena *arena, uint64_t bytes);

    struct arena *next; /* all that are open */
    uintptr_t base;
    uint32_t units, free_head, highest_used;
    uint32_t with_room[SMALL_CLASSES]; /* units with a free block of that class that belong to no context */
    struct unit *unit;
};

/* Maps that much address space; more than the memory, for what fragments. False if this process has no room for it. */
bool arena_open(struct arena *arena, uint64_t bytes);

/* Gives back every block and the address space. */
void arena_close(struct arena *arena);

/* A block that belongs to a context or, with NULL, to none. 0 if the card has too little left. */
uintptr_t arena_take(struct arena *arena, struct CUctx_st *context, size_t bytes);

/* False if no block starts there. */
bool arena_give(struct arena *arena, uintptr_t address);

/* Gives back what belongs to a context. */
void arena_give_context(struct arena *arena, struct CUctx_st *context);

/* The block around an address, in whichever arena. NULL if there is none. */
struct arena *arena_find(uintptr_t address, uintptr_t *start, size_t *bytes, struct CUctx_st **context);

/* Notes that the block was written, so that its memory goes back to the system when it is freed. */
void arena_touch(struct arena *arena, uintptr_t address);

/* Units around a block, for those who replace what is mapped there. */
void arena_units_of(struct arena *arena, uintptr_t address, uintptr_t *start, size_t *bytes);

/* Whether its units become free with the block. */
bool arena_is_last_of_units(struct arena *arena, uintptr_t address);
