#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/ledger.h"
#include "harness.h"

static struct extension *new_books(void)
{
    struct extension *books = mmap(NULL, sizeof(*books), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(books != MAP_FAILED);
    return books;
}

static uint64_t sum_of_lanes(const struct extension *books, unsigned device)
{
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < REGION_SLOTS; slot++)
        sum += ledger_held(books, slot, device);
    return sum;
}

TEST(a_charge_is_granted_up_to_the_limit_and_not_a_byte_more)
{
    struct extension *books = new_books();
    CHECK(ledger_charge(books, 3, 0, 60, 100));
    CHECK(!ledger_charge(books, 4, 0, 41, 100));
    CHECK(ledger_charge(books, 4, 0, 40, 100));
    CHECK(!ledger_charge(books, 3, 0, 1, 100));
    CHECK_EQUAL(ledger_total(books, 0), 100);
    CHECK_EQUAL(ledger_held(books, 3, 0), 60);
    CHECK_EQUAL(ledger_held(books, 4, 0), 40);
    CHECK_EQUAL(ledger_total(books, 1), 0);
    ledger_release(books, 3, 0, 60);
    CHECK_EQUAL(ledger_total(books, 0), 40);
    CHECK(!ledger_charge(books, 3, 0, UINT64_MAX, UINT64_MAX));
    CHECK(!ledger_charge(books, 3, 0, INT64_MAX, 100));
}

TEST(a_limit_below_what_is_used_refuses_and_keeps)
{
    struct extension *books = new_books();
    CHECK(ledger_charge(books, 0, 0, 90, 100));
    CHECK(!ledger_charge(books, 0, 0, 1, 50));
    CHECK_EQUAL(ledger_total(books, 0), 90);
    ledger_release(books, 0, 0, 45);
    CHECK(ledger_charge(books, 0, 0, 5, 50));
}

TEST(a_total_never_goes_below_zero)
{
    struct extension *books = new_books();
    CHECK(ledger_charge(books, 0, 0, 10, 100));
    books->devices[0].books.total = 3; /* a container that wrote into its own region */
    ledger_release(books, 0, 0, 10);
    CHECK_EQUAL(ledger_total(books, 0), 0);
    CHECK_EQUAL(ledger_held(books, 0, 0), 0);
}

TEST(recovery_gives_back_what_a_slot_holds)
{
    struct extension *books = new_books();
    CHECK(ledger_charge(books, 7, 2, 30, 100));
    CHECK(ledger_charge(books, 8, 2, 20, 100));
    ledger_recover(books, 7, 2);
    ledger_recover(books, 7, 2);
    CHECK_EQUAL(ledger_total(books, 2), 20);
    CHECK_EQUAL(sum_of_lanes(books, 2), 20);
}

/* Each state that a death in the middle of a step leaves behind. */
TEST(recovery_settles_a_step_that_was_committed_and_only_that)
{
    struct extension *books = new_books();
    struct lane *lane = &books->lanes[5][0];
    CHECK(ledger_charge(books, 5, 0, 10, 100));

    lane->delta = 40; /* died before the swap */
    ledger_recover(books, 5, 0);
    CHECK_EQUAL(ledger_total(books, 0), 0);

    CHECK(ledger_charge(books, 5, 0, 10, 100));
    lane->delta = 40; /* died after the swap */
    books->devices[0].books = (struct tagged_total){50, UINT64_C(5) << 48 | (lane->settled + 1)};
    ledger_recover(books, 5, 0);
    CHECK_EQUAL(ledger_total(books, 0), 0);

    CHECK(ledger_charge(books, 5, 0, 10, 100));
    lane->delta = 40; /* died after the swap, and another has replaced the tag since */
    books->devices[0].books = (struct tagged_total){50, UINT64_C(5) << 48 | (lane->settled + 1)};
    CHECK(ledger_charge(books, 6, 0, 7, 100));
    ledger_recover(books, 5, 0);
    CHECK_EQUAL(ledger_total(books, 0), 7);
    CHECK_EQUAL(sum_of_lanes(books, 0), 7);
}

static void hammer(struct extension *books, unsigned slot, unsigned rounds)
{
    const uint64_t limit = 1000;
    uint64_t held = 0;
    unsigned seed = slot + 1;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % 200;
        if (held == 0 && ledger_charge(books, slot, 0, bytes, limit)) {
            held = bytes;
        } else if (held) {
            ledger_release(books, slot, 0, held);
            held = 0;
        }
        if (ledger_total(books, 0) > limit)
            _exit(1);
    }
    ledger_release(books, slot, 0, held);
    _exit(0);
}

TEST(many_processes_never_go_above_the_limit_and_end_at_zero)
{
    struct extension *books = new_books();
    enum { PROCESSES = 8, ROUNDS = 50000 };
    for (unsigned slot = 0; slot < PROCESSES; slot++)
        if (fork() == 0)
            hammer(books, slot, ROUNDS);
    for (unsigned slot = 0; slot < PROCESSES; slot++) {
        int status;
        wait(&status);
        CHECK_EQUAL(status, 0);
    }
    CHECK_EQUAL(ledger_total(books, 0), 0);
    CHECK_EQUAL(sum_of_lanes(books, 0), 0);
}

TEST(what_the_killed_held_is_recovered_exactly)
{
    struct extension *books = new_books();
    enum { PROCESSES = 4, KILLS = 400 };
    pid_t children[PROCESSES];
    for (unsigned slot = 0; slot < PROCESSES; slot++)
        if ((children[slot] = fork()) == 0)
            hammer(books, slot, UINT32_MAX);
    for (unsigned i = 0; i < KILLS; i++) {
        unsigned slot = i % PROCESSES;
        int status;
        usleep(500);
        kill(children[slot], SIGKILL);
        CHECK(waitpid(children[slot], &status, 0) == children[slot] && WIFSIGNALED(status));
        ledger_recover(books, slot, 0);
        CHECK(ledger_total(books, 0) <= 1000);
        if ((children[slot] = fork()) == 0)
            hammer(books, slot, UINT32_MAX);
    }
    for (unsigned slot = 0; slot < PROCESSES; slot++) {
        kill(children[slot], SIGKILL);
        waitpid(children[slot], NULL, 0);
    }
    for (unsigned slot = 0; slot < PROCESSES; slot++)
        ledger_recover(books, slot, 0);
    CHECK_EQUAL(ledger_total(books, 0), 0);
    CHECK_EQUAL(sum_of_lanes(books, 0), 0);
}
