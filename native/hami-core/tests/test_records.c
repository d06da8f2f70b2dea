#define _GNU_SOURCE
#include <stdlib.h>

#include "../src/records.h"
#include "harness.h"

static struct records records;

static void add(uint64_t key, uint64_t bytes, uint64_t owner)
{
    CHECK(records_add(&records, (struct record){.key = key, .bytes = bytes, .device = 1, .owner = owner}));
}

TEST(what_was_added_is_taken_once)
{
    struct record taken;
    add(0x7f0000000000, 10, 0);
    CHECK(!records_take(&records, 0x7f0000000200, &taken));
    CHECK(records_find(&records, 0x7f0000000000, &taken));
    CHECK(records_take(&records, 0x7f0000000000, &taken));
    CHECK_EQUAL(taken.bytes, 10);
    CHECK_EQUAL(taken.device, 1);
    CHECK(!records_take(&records, 0x7f0000000000, &taken));
    CHECK(!records_find(&records, 0x7f0000000000, &taken));
    CHECK(!records_take(&records, 0, &taken));
}

/* Against an array: grows, deletes in random order with long probe runs, keeps every other entry. */
TEST(a_hundred_thousand_survive_random_removals)
{
    enum { COUNT = 100000, ROUNDS = 400000 };
    static bool there[COUNT];
    struct record taken;
    unsigned seed = 7;

    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned n = (unsigned)rand_r(&seed) % COUNT;
        uint64_t key = UINT64_C(0x7f0000000000) + (uint64_t)n * 512;
        if (there[n]) {
            CHECK(records_take(&records, key, &taken));
            CHECK_EQUAL(taken.bytes, n);
        } else {
            CHECK(!records_take(&records, key, &taken));
            add(key, n, 0);
        }
        there[n] = !there[n];
    }
    for (unsigned n = 0; n < COUNT; n++)
        CHECK_EQUAL(records_take(&records, UINT64_C(0x7f0000000000) + (uint64_t)n * 512, &taken), there[n]);
}

TEST(a_record_goes_with_its_last_reference)
{
    struct record after;
    add(5, 100, 1);
    CHECK(records_refer(&records, 5, 1, &after));
    CHECK_EQUAL(after.owner, 2);
    CHECK(records_refer(&records, 5, -1, &after));
    CHECK(records_find(&records, 5, &after));
    CHECK(records_refer(&records, 5, -1, &after));
    CHECK_EQUAL(after.owner, 0);
    CHECK_EQUAL(after.bytes, 100);
    CHECK(!records_refer(&records, 5, -1, &after));
}

TEST(all_of_an_owner_are_taken_and_no_other)
{
    struct record taken;
    uint64_t sum = 0;
    for (uint64_t key = 1; key <= 1000; key++)
        add(key << 9, key, key % 3);
    while (records_take_of(&records, 1, &taken))
        sum += taken.bytes;
    CHECK_EQUAL(sum, 334 * (1 + 1000) / 2);
    for (uint64_t key = 1; key <= 1000; key++)
        CHECK_EQUAL(records_find(&records, key << 9, &taken), key % 3 != 1);
}
