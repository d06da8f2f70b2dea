/* Open addressing with linear probing: deleting shifts the followers back, so there are no tombstones and a table that was large
 * once is not slow for ever. */
#define _GNU_SOURCE
#include "allocations.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

enum { FIRST_PLACES = 128, STRIPE_BITS = 6 };

static uint64_t hash(uint64_t pointer)
{
    return (pointer >> 8 ^ pointer << 56) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct allocation_stripe *stripe_of(struct allocations *allocations, uint64_t hashed)
{
    return &allocations->stripes[hashed >> (64 - STRIPE_BITS)];
}

/* The bits below the stripe's. */
static uint64_t home(uint64_t hashed, uint64_t places)
{
    return hashed >> 16 & (places - 1);
}

static void place(struct allocation *table, uint64_t places, struct allocation allocation)
{
    uint64_t at = home(hash(allocation.pointer), places);
    while (table[at].pointer)
        at = (at + 1) & (places - 1);
    table[at] = allocation;
}

static bool grow(struct allocation_stripe *stripe)
{
    uint64_t places = stripe->places ? stripe->places * 2 : FIRST_PLACES;
    int saved = errno;
    struct allocation *table =
        mmap(NULL, places * sizeof(*table), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (table == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < stripe->places; i++)
        if (stripe->table[i].pointer)
            place(table, places, stripe->table[i]);
    if (stripe->table)
        munmap(stripe->table, stripe->places * sizeof(*table));
    stripe->table = table;
    stripe->places = places;
    return true;
}

bool allocations_add(struct allocations *allocations, struct allocation allocation)
{
    struct allocation_stripe *stripe = stripe_of(allocations, hash(allocation.pointer));
    lock_take(&stripe->lock);
    bool room = stripe->count < stripe->places / 2 || grow(stripe);
    if (room) {
        place(stripe->table, stripe->places, allocation);
        stripe->count++;
    }
    lock_drop(&stripe->lock);
    return room;
}

static void remove_at(struct allocation_stripe *stripe, uint64_t hole)
{
    uint64_t mask = stripe->places - 1;
    struct allocation *table = stripe->table;
    for (uint64_t at = (hole + 1) & mask; table[at].pointer; at = (at + 1) & mask) {
        uint64_t wanted = home(hash(table[at].pointer), stripe->places);
        /* Moves back only what does not begin its search behind the hole. */
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            table[hole] = table[at];
            hole = at;
        }
    }
    table[hole].pointer = 0;
    stripe->count--;
}

bool allocations_take(struct allocations *allocations, uint64_t pointer, struct allocation *taken)
{
    uint64_t hashed = hash(pointer);
    struct allocation_stripe *stripe = stripe_of(allocations, hashed);
    bool found = false;

    lock_take(&stripe->lock);
    if (stripe->places) {
        uint64_t mask = stripe->places - 1, at = home(hashed, stripe->places);
        while (stripe->table[at].pointer && stripe->table[at].pointer != pointer)
            at = (at + 1) & mask;
        found = pointer != 0 && stripe->table[at].pointer == pointer;
        if (found) {
            *taken = stripe->table[at];
            remove_at(stripe, at);
        }
    }
    lock_drop(&stripe->lock);
    return found;
}
