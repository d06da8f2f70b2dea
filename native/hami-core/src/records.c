/* Open addressing with linear probing: deleting shifts the followers back, so there are no tombstones and a table that was large
 * once is not slow for ever. */
#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

enum { FIRST_PLACES = 128, STRIPE_BITS = 6 };

static uint64_t hash(uint64_t key)
{
    return (key >> 8 ^ key << 56) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct record_stripe *stripe_of(struct records *records, uint64_t key)
{
    return &records->stripes[hash(key) >> (64 - STRIPE_BITS)];
}

/* By the bits below the stripe's. */
static uint64_t home(uint64_t key, uint64_t places)
{
    return hash(key) >> 16 & (places - 1);
}

/* The place of the key, or the empty one where it would be. */
static struct record *place_of(struct record *table, uint64_t places, uint64_t key)
{
    uint64_t at = home(key, places);
    while (table[at].key && table[at].key != key)
        at = (at + 1) & (places - 1);
    return &table[at];
}

HOT static struct record *lookup(const struct record_stripe *stripe, uint64_t key)
{
    if (!stripe->places || !key)
        return NULL;
    struct record *record = place_of(stripe->table, stripe->places, key);
    return record->key ? record : NULL;
}

static SLOW bool grow(struct record_stripe *stripe)
{
    uint64_t places = stripe->places ? stripe->places * 2 : FIRST_PLACES;
    int saved = errno;
    struct record *table = mmap(NULL, places * sizeof(*table), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (table == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < stripe->places; i++)
        if (stripe->table[i].key)
            *place_of(table, places, stripe->table[i].key) = stripe->table[i];
    if (stripe->table)
        munmap(stripe->table, stripe->places * sizeof(*table));
    __atomic_store_n(&stripe->table, table, __ATOMIC_RELAXED);
    __atomic_store_n(&stripe->places, places, __ATOMIC_RELAXED);
    return true;
}

HOT bool records_put(struct records *records, uint64_t key, uint64_t bytes, uint32_t device, uint32_t kind, uint64_t owner)
{
    struct record_stripe *stripe = stripe_of(records, key);
    lock_take_briefly(&stripe->lock);
    /* Three quarters full: longer ways to a place cost less than the cache that a larger table takes. */
    bool room = stripe->count < stripe->places / 4 * 3 || grow(stripe);
    if (room) {
        struct record *place = place_of(stripe->table, stripe->places, key);
        stripe->count += place->key == 0;
        *place = (struct record){key, bytes, device, kind, owner};
    }
    lock_drop_briefly(&stripe->lock);
    return room;
}

HOT static void erase(struct record_stripe *stripe, struct record *record)
{
    struct record *table = stripe->table;
    uint64_t mask = stripe->places - 1, hole = (uint64_t)(record - table);
    for (uint64_t at = (hole + 1) & mask; table[at].key; at = (at + 1) & mask) {
        uint64_t wanted = home(table[at].key, stripe->places);
        /* Moves back only what does not begin its search behind the hole. */
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            table[hole] = table[at];
            hole = at;
        }
    }
    table[hole].key = 0;
    stripe->count--;
}

/* Fetches the place into the cache while the lock is taken. Without it, table and places may be of two moments: another line is fetched. */
static void prefetch(const struct record_stripe *stripe, uint64_t key)
{
    uintptr_t table = (uintptr_t)__atomic_load_n(&stripe->table, __ATOMIC_RELAXED);
    uint64_t at = home(key, __atomic_load_n(&stripe->places, __ATOMIC_RELAXED));
    __builtin_prefetch((const void *)(table + at * sizeof(struct record)), 1);
}

HOT bool records_take(struct records *records, uint64_t key, struct record *taken)
{
    struct record_stripe *stripe = stripe_of(records, key);
    prefetch(stripe, key);
    lock_take_briefly(&stripe->lock);
    struct record *record = lookup(stripe, key);
    if (record) {
        *taken = *record;
        erase(stripe, record);
    }
    lock_drop_briefly(&stripe->lock);
    return record != NULL;
}

bool records_find(struct records *records, uint64_t key, struct record *found)
{
    struct record_stripe *stripe = stripe_of(records, key);
    lock_take_briefly(&stripe->lock);
    const struct record *record = lookup(stripe, key);
    if (record)
        *found = *record;
    lock_drop_briefly(&stripe->lock);
    return record != NULL;
}

bool records_refer(struct records *records, uint64_t key, int change, struct record *after)
{
    struct record_stripe *stripe = stripe_of(records, key);
    lock_take_briefly(&stripe->lock);
    struct record *record = lookup(stripe, key);
    if (record) {
        record->owner += (uint64_t)(int64_t)change;
        *after = *record;
        if (!record->owner)
            erase(stripe, record);
    }
    lock_drop_briefly(&stripe->lock);
    return record != NULL;
}

bool records_take_of(struct records *records, uint64_t owner, struct record *taken)
{
    for (unsigned i = 0; i < RECORD_STRIPES; i++) {
        struct record_stripe *stripe = &records->stripes[i];
        struct record *record = NULL;
        lock_take_briefly(&stripe->lock);
        for (uint64_t at = 0; stripe->count && at < stripe->places && !record; at++)
            if (stripe->table[at].key && stripe->table[at].owner == owner)
                record = &stripe->table[at];
        if (record) {
            *taken = *record;
            erase(stripe, record);
        }
        lock_drop_briefly(&stripe->lock);
        if (record)
            return true;
    }
    return false;
}
