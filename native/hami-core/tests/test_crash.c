/* Death after every single instruction. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/ledger.h"
#include "harness.h"
#include "stepping.h"
#include "world.h"

enum { VICTIM = 5, OTHER = 6, LIMIT = 1000 };

static struct extension *books;

static void new_books(void)
{
    if (!books) {
        books = mmap(NULL, sizeof(*books), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(books != MAP_FAILED);
    }
    memset(&books->devices[0], 0, sizeof(books->devices[0]));
    memset(books->lanes[VICTIM], 0, sizeof(books->lanes[VICTIM]));
    memset(books->lanes[OTHER], 0, sizeof(books->lanes[OTHER]));
}

static void books_are_right(uint64_t others, const char *when, unsigned long instruction)
{
    uint64_t total = ledger_total(books, 0), victim = ledger_held(books, VICTIM, 0), other = ledger_held(books, OTHER, 0);
    if (total != others || victim != 0 || other != others)
        check_failed(__FILE__, __LINE__, "%s, death after instruction %lu: total %llu, the dead hold %llu, the other holds %llu of %llu",
                     when, instruction, (unsigned long long)total, (unsigned long long)victim, (unsigned long long)other,
                     (unsigned long long)others);
}

static void other_charges(void)
{
    CHECK(ledger_charge(books, OTHER, 0, 7, LIMIT));
}

/* Runs `act` in a process that dies after so many of its instructions, with `meanwhile` done by another while it lives but does not run.
 * False: it came to its end before that. */
static bool die_after(void (*act)(void), unsigned long instructions, void (*meanwhile)(void))
{
    struct stepped victim = stepped(NULL, act, instructions);
    if (meanwhile)
        meanwhile();
    stepped_kill(&victim);
    return !victim.ended;
}

static void charge_and_release(void)
{
    ledger_charge(books, VICTIM, 0, 100, LIMIT);
    ledger_charge(books, VICTIM, 0, 30, LIMIT);
    ledger_release(books, VICTIM, 0, 100);
    ledger_release(books, VICTIM, 0, 30);
}

static void recover(void)
{
    ledger_recover(books, VICTIM, 0);
}

TEST(an_owner_that_dies_after_any_instruction_leaves_books_that_can_be_settled)
{
    static const struct {
        const char *name;
        bool before, between, after;
    } others[] = {{"alone", false, false, false},
                  {"another charged before", true, false, false},
                  {"another charged while it was stopped", false, true, false},
                  {"another charged before the reaper came", false, false, true},
                  {"another charged all the time", true, true, true}};
    for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        bool more = true;
        unsigned long instruction = 0;
        for (; more; instruction++) {
            uint64_t charged = 7 * (uint64_t)(others[i].before + others[i].between + others[i].after);
            new_books();
            if (others[i].before)
                other_charges();
            more = die_after(charge_and_release, instruction, others[i].between ? other_charges : NULL);
            if (others[i].after)
                other_charges();
            recover();
            books_are_right(charged, others[i].name, instruction);
        }
        CHECK(instruction > 200);
    }
}

/* States that a death leaves for the reaper: before, at and after the swap of a charge. */
static void leave(unsigned state)
{
    struct lane *lane = &books->lanes[VICTIM][0];
    CHECK(ledger_charge(books, VICTIM, 0, 100, LIMIT));
    lane->delta = 40;
    if (state >= 1)
        books->devices[0].books = (struct tagged_total){140, (uint64_t)VICTIM << 48 | (lane->settled + 1)};
    if (state >= 2)
        other_charges();
}

TEST(a_reaper_that_dies_after_any_instruction_leaves_books_that_can_be_settled)
{
    for (unsigned state = 0; state < 3; state++) {
        bool more = true;
        unsigned long instruction = 0;
        for (; more; instruction++) {
            new_books();
            leave(state);
            more = die_after(recover, instruction, instruction % 2 ? other_charges : NULL);
            recover();
            books_are_right(7 * (uint64_t)((state == 2) + instruction % 2), "reaping", instruction);
        }
        CHECK(instruction > 50);
    }
}

/* The whole library: with the 400 of test_ledger.c, 2000 kills. */
TEST(what_killed_programs_held_is_given_back_and_nobody_waits)
{
    enum { WAITED_MILLISECONDS = 50, SLACK = 10 };
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    double slowest;
    const char *said = strstr(world_run(&world, KILLER, RUNTIME[0] ? "4 100" : "4 1600"), "slowest call");
    CHECK(said && sscanf(said, "slowest call: %lf ms", &slowest) == 1);
    if (slowest > SLACK * WAITED_MILLISECONDS)
        check_failed(__FILE__, __LINE__, "a call beside them took %.1f ms", slowest);
}

TEST(a_stopped_program_holds_up_nobody)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    struct client stopped = client_start(&world, "handle", NULL), other = client_start(&world, "handle", NULL);
    client_do(&stopped, "init");
    CHECK_TEXT(client_do(&stopped, "context 0"), "0");
    client_do(&other, "init");
    CHECK_TEXT(client_do(&other, "context 0"), "0");
    client_tell(&stopped, "hammer 500m");
    for (unsigned i = 0; i < 100; i++) {
        usleep(500 + i * 13);
        kill(stopped.pid, SIGSTOP);
        /* Each of these waits for an answer; a lock that the stopped one holds would keep it for ever. */
        CHECK_TEXT(client_do(&other, "alloc 1g"), "0");
        CHECK_TEXT(client_do(&other, "free %u", i), "0");
        struct client starting = client_start(&world, "handle", NULL);
        CHECK_TEXT(client_do(&starting, "init"), "0");
        client_end(&starting);
        kill(stopped.pid, SIGCONT);
    }
}
