#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../src/allocations.h"
#include "harness.h"

static struct allocations allocations;

static void add(uint64_t pointer, uint64_t bytes)
{
    CHECK(allocations_add(&allocations, (struct allocation){.pointer = pointer, .bytes = bytes, .device = 1}));
}

TEST(what_was_added_is_taken_once)
{
    struct allocation taken;
    add(0x7f0000000000, 10);
    CHECK(!allocations_take(&allocations, 0x7f0000000200, &taken));
    CHECK(allocations_take(&allocations, 0x7f0000000000, &taken));
    CHECK_EQUAL(taken.bytes, 10);
    CHECK_EQUAL(taken.device, 1);
    CHECK(!allocations_take(&allocations, 0x7f0000000000, &taken));
    CHECK(!allocations_take(&allocations, 0, &taken));
}

/* Against an array: grows, deletes in random order with long probe runs, keeps every other entry. */
TEST(a_hundred_thousand_survive_random_frees)
{
    enum { COUNT = 100000, ROUNDS = 400000 };
    static bool there[COUNT];
    struct allocation taken;
    unsigned seed = 7;

    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned n = (unsigned)rand_r(&seed) % COUNT;
        uint64_t pointer = UINT64_C(0x7f0000000000) + (uint64_t)n * 512;
        if (there[n]) {
            CHECK(allocations_take(&allocations, pointer, &taken));
            CHECK_EQUAL(taken.bytes, n);
        } else {
            CHECK(!allocations_take(&allocations, pointer, &taken));
            add(pointer, n);
        }
        there[n] = !there[n];
    }
    for (unsigned n = 0; n < COUNT; n++)
        CHECK_EQUAL(allocations_take(&allocations, UINT64_C(0x7f0000000000) + (uint64_t)n * 512, &taken), there[n]);
}
