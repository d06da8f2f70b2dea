#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

#define MEMORY "container=main\nmemory=4096m\n"
#define LIMIT (4147 * MIB)

static struct client started(const struct world *world, const char *way)
{
    struct client client = client_start(world, way, NULL);
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    return client;
}

static const char *info(uint64_t free, uint64_t total)
{
    static char text[64];
    snprintf(text, sizeof(text), "0 %llu %llu", (unsigned long long)free, (unsigned long long)total);
    return text;
}

TEST(a_managed_container_gets_its_share_by_every_way_to_find_the_driver)
{
    static const char *const ways[] = {"linked", "handle", "default", "getproc"};
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct world world = world_make();
        world_limits(&world, MEMORY, "4147m");
        struct client client = started(&world, ways[i]);
        CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
        CHECK_TEXT(client_do(&client, "total 0"), "0 4348444672");
        CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
        CHECK_TEXT(client_errors(&client), "");
        CHECK_TEXT(client_do(&client, "alloc 2g"), "2");
        CHECK_TEXT(client_do(&client, "alloc 974m"), "0");
        CHECK_TEXT(client_do(&client, "alloc 2m"), "2");
        CHECK_TEXT(client_do(&client, "info"), info(MIB, LIMIT));
        CHECK_TEXT(client_do(&client, "free 0"), "0");
        CHECK_TEXT(client_do(&client, "info"), info(3 * GIB + MIB, LIMIT));
        CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
        CHECK_EQUAL(client_end(&client), 0);
    }
}

TEST(without_kais_file_a_fraction_is_of_the_card)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nfraction=0.5\n", NULL);
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "info"), info(7680 * MIB - CONTEXT, 7680 * MIB));
}

TEST(processes_of_a_container_share_the_limit)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client one = started(&world, "handle"), two = started(&world, "getproc");
    CHECK_TEXT(client_do(&one, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&two, "alloc 2g"), "2");
    CHECK_TEXT(client_do(&two, "alloc 800m"), "0");
    CHECK_TEXT(client_do(&one, "info"), info(75 * MIB, LIMIT));
    CHECK_TEXT(client_do(&two, "info"), info(75 * MIB, LIMIT));
    CHECK_TEXT(client_do(&one, "free 0"), "0");
    CHECK_TEXT(client_do(&two, "alloc 3g"), "0");
}

TEST(what_a_dead_process_held_is_free_again)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client one = started(&world, "handle"), two = started(&world, "handle");
    CHECK_TEXT(client_do(&one, "alloc 3800m"), "0");
    CHECK_TEXT(client_do(&two, "alloc 1g"), "2");
    client_kill(&one);
    CHECK_TEXT(client_do(&two, "alloc 3800m"), "0");
}

TEST(a_program_that_executes_another_leaves_nothing_charged)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "alloc 3800m"), "0");
    CHECK_TEXT(client_do(&client, "exec"), "0");
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
    CHECK_TEXT(client_do(&client, "alloc 3800m"), "0");
}

TEST(a_child_of_fork_counts_for_itself)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client parent = client_start(&world, "handle", NULL), other = started(&world, "handle");
    CHECK_TEXT(client_do(&parent, "fork"), "0");
    CHECK_TEXT(client_do(&parent, "init"), "0");
    CHECK_TEXT(client_do(&parent, "context 0"), "0");
    CHECK_TEXT(client_do(&parent, "alloc 3800m"), "0");
    CHECK_TEXT(client_do(&other, "alloc 1g"), "2");
    CHECK_EQUAL(client_end(&parent), 0);
    CHECK_TEXT(client_do(&other, "alloc 3800m"), "0");
}

TEST(a_child_that_ends_takes_nothing_of_its_parent_away)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client parent = started(&world, "handle"), other = started(&world, "handle");
    CHECK_TEXT(client_do(&parent, "alloc 3800m"), "0");
    CHECK_TEXT(client_do(&parent, "fork-die"), "0");
    CHECK_TEXT(client_do(&other, "alloc 1g"), "2");
    CHECK_TEXT(client_do(&parent, "info"), info(147 * MIB, LIMIT));
}

/* Closing a descriptor drops record locks, and the memory is still the program's. */
TEST(a_program_that_closes_every_descriptor_keeps_its_slot)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client daemon = started(&world, "handle"), other = started(&world, "handle");
    CHECK_TEXT(client_do(&daemon, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&daemon, "close-all"), "0");
    CHECK_TEXT(client_do(&other, "alloc 2g"), "2");
    CHECK_TEXT(client_do(&daemon, "alloc 2g"), "2");
    CHECK_TEXT(client_do(&other, "alloc 2g"), "2");
    client_kill(&daemon);
    CHECK_TEXT(client_do(&other, "alloc 2g"), "0");
}

/* The driver answers 3 to all that such a child asks, and so do we. */
TEST(a_child_of_a_program_that_uses_cuda_gets_the_drivers_error)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "fork"), "0");
    CHECK_TEXT(client_do(&client, "alloc 1m"), "3");
    CHECK_TEXT(client_do(&client, "free 0"), "3");
    CHECK_TEXT(client_do(&client, "init"), "3");
    CHECK_TEXT(client_errors(&client), "");
}

static const char *nvml(uint64_t total, uint64_t free, uint64_t used)
{
    static char text[160];
    snprintf(text, sizeof(text), "0 %llu %llu %llu | 0 %llu %llu %llu %llu", (unsigned long long)total, (unsigned long long)free,
             (unsigned long long)used, (unsigned long long)total, (unsigned long long)(total - free - used),
             (unsigned long long)free, (unsigned long long)used);
    return text;
}

TEST(nvml_shows_the_share_too)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client watcher = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&watcher, "nvml 0"), nvml(LIMIT, LIMIT, 0));
    struct client user = started(&world, "handle");
    CHECK_TEXT(client_do(&user, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&user, "nvml 0"), nvml(LIMIT, LIMIT - 3 * GIB - CONTEXT, 3 * GIB + CONTEXT));
    CHECK_TEXT(client_do(&watcher, "nvml 0"), nvml(LIMIT, LIMIT - 3 * GIB - CONTEXT, 3 * GIB + CONTEXT));
    client_kill(&user);
    CHECK_TEXT(client_do(&watcher, "nvml 0"), nvml(LIMIT, LIMIT, 0));
}

TEST(the_start_of_cuda_makes_no_context)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = client_start(&world, "handle", NULL);
    struct client host = client_start(&world, "handle", (const char *const[]){"LD_PRELOAD=", NULL});
    char wanted[64];
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "nvml 0"), nvml(LIMIT, LIMIT, 0));
    CHECK_TEXT(client_do(&host, "processes 0"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    snprintf(wanted, sizeof(wanted), "0 %d:%llu", client.pid, (unsigned long long)CONTEXT);
    CHECK_TEXT(client_do(&host, "processes 0"), wanted);
}

TEST(nvml_that_was_not_begun_answers_so)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "nvml-before-init"), "1 1");
}

TEST(free_is_never_above_what_the_card_has_free)
{
    struct world one = world_make();
    world_limits(&one, "container=main\nfraction=0.9\n", NULL);
    struct client tenant = started(&one, "handle");
    struct client host = client_start(&one, "handle", (const char *const[]){"LD_PRELOAD=", NULL});
    CHECK_TEXT(client_do(&host, "init"), "0");
    CHECK_TEXT(client_do(&host, "context 0"), "0");
    CHECK_TEXT(client_do(&host, "alloc 10g"), "0");
    CHECK_TEXT(client_do(&tenant, "info"), info((15360 - 10240 - 200) * MIB, 13824 * MIB));
    /* The card is full before the limit is reached: the driver's own refusal, and the charge is given back. */
    CHECK_TEXT(client_do(&tenant, "alloc 6g"), "2");
    CHECK_TEXT(client_do(&tenant, "nvml 0"), nvml(13824 * MIB, 4920 * MIB, CONTEXT));
    CHECK_TEXT(client_errors(&tenant), "");
}

TEST(a_limit_is_never_shown_above_the_card)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=99999m\n", NULL);
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "total 0"), "0 16106127360");
    CHECK_TEXT(client_do(&client, "info"), info(15260 * MIB, 15360 * MIB));
}

TEST(an_exempted_container_sees_the_card)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=none\n", NULL);
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "info"), info(15260 * MIB, 15360 * MIB));
    CHECK_TEXT(client_do(&client, "nvml 0"), "0 16106127360 16001269760 104857600 | 0 16106127360 0 16001269760 104857600");
    CHECK_TEXT(client_do(&client, "alloc 14g"), "0");
    CHECK_HAS(client_do(&client, "processes 0"), ":15137243136");
}

TEST(the_environment_raises_nothing_in_a_managed_container)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = client_start(&world, "handle",
                                        (const char *const[]){"CUDA_DEVICE_MEMORY_LIMIT=15360m", "CUDA_DEVICE_MEMORY_LIMIT_0=15360m",
                                                              "CONTAINER_NAME=other", "POD_UID=other",
                                                              "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/elsewhere.cache", NULL});
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
    CHECK_EQUAL(access(world.region, F_OK), 0);
}

TEST(a_process_may_lower_its_own_limit)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client other = started(&world, "handle");
    struct client lowered = client_start(&world, "handle", (const char *const[]){"ISOLATOR_MEMORY_LIMIT=1g", NULL});
    CHECK_TEXT(client_do(&lowered, "init"), "0");
    CHECK_TEXT(client_do(&lowered, "context 0"), "0");
    CHECK_TEXT(client_do(&lowered, "info"), info(GIB - CONTEXT - CONTEXT, GIB));
    CHECK_TEXT(client_do(&other, "info"), info(LIMIT - 2 * CONTEXT, LIMIT));
    struct client raised = client_start(&world, "handle", (const char *const[]){"ISOLATOR_MEMORY_LIMIT=100g", NULL});
    CHECK_TEXT(client_do(&raised, "init"), "0");
    CHECK_TEXT(client_do(&raised, "context 0"), "0");
    CHECK_TEXT(client_do(&raised, "info"), info(LIMIT - 3 * CONTEXT, LIMIT));
    struct client wrong = client_start(&world, "handle", (const char *const[]){"ISOLATOR_MEMORY_LIMIT=1gb", NULL});
    CHECK_TEXT(client_do(&wrong, "init"), "800");
    CHECK_HAS(client_errors(&wrong), "ISOLATOR_MEMORY_LIMIT=1gb: accepted is");
}

TEST(limits_follow_the_files)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&client, "alloc 3g"), "2");
    world_limits(&world, "container=main\nmemory=8192m\n", NULL);
    /* Gone is KAI's file: what was valid last stays, and is said. */
    CHECK_TEXT(client_do(&client, "alloc 3g"), "2");
    CHECK_HAS(client_errors(&client), "stays as it was: CUDA_DEVICE_MEMORY_LIMIT is gone");
    /* A refusal looks at the files first, so a raised limit counts at once. */
    world_limits(&world, "container=main\nmemory=8192m\n", "8294m");
    CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&client, "info"), info((8294 - 6144) * MIB - CONTEXT, 8294 * MIB));
    world_limits(&world, "container=main\nmemory=8192\n", "8294m");
    CHECK_TEXT(client_do(&client, "alloc 3g"), "2");
    CHECK_HAS(client_errors(&client), "stays as it was: request: memory=8192: accepted is MiB");
    /* Lowered below what is used: nothing new, and the old stays. It is seen at the next look, a second later at most. */
    world_limits(&world, "container=main\nmemory=2048m\n", "2150m");
    for (unsigned tries = 0; tries < 100 && strcmp(client_do(&client, "info"), info(0, 2150 * MIB)) != 0; tries++)
        usleep(100000);
    CHECK_TEXT(client_do(&client, "info"), info(0, 2150 * MIB));
    CHECK_TEXT(client_do(&client, "nvml 0"), "0 2254438400 0 6547308544 | 0 2254438400 0 0 6547308544");
    CHECK_TEXT(client_do(&client, "alloc 1"), "2");
    CHECK_TEXT(client_do(&client, "free 0"), "0");
    CHECK_TEXT(client_do(&client, "free 1"), "0");
    CHECK_TEXT(client_do(&client, "alloc 2050m"), "0");
}

TEST(a_refusal_says_what_to_do_and_not_too_often)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = started(&world, "handle");
    CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
    for (unsigned i = 0; i < 50; i++)
        CHECK_TEXT(client_do(&client, "alloc 2g"), "2");
    const char *said = client_errors(&client);
    CHECK_HAS(said, "container main asked for 2147483648 bytes on device 0 (" T4_UUID ") and has 3326083072 of 4348444672");
    CHECK_HAS(said, "by process ");
    CHECK_HAS(said, "(client) 3326083072");
    CHECK_HAS(said, "raise gpu-memory or gpu-fraction of the pod");
    unsigned lines = 0;
    for (const char *c = said; *c; c++)
        lines += *c == '\n';
    CHECK(lines >= 1 && lines <= 5);
}

TEST(what_the_library_never_saw_goes_to_the_driver)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    static const char *const calls[] = {"free-pointer 0", "free-pointer 0x123456789", "alloc 0", "alloc-null 1m", "free 0"};
    struct client client = started(&world, "handle");
    struct client bare = client_start(&world, "handle", (const char *const[]){"LD_PRELOAD=", NULL});
    client_do(&bare, "init");
    client_do(&bare, "context 0");
    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        CHECK_TEXT(client_do(&client, "%s", calls[i]), client_do(&bare, "%s", calls[i]));
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
}

TEST(a_failed_free_keeps_the_charge_and_a_failed_allocation_does_not)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = client_start(
        &world, "handle", (const char *const[]){"FAKEGPU_FAULTS=cuMemFree_v2=error:999@1;cuMemAlloc_v2=error:999@1", NULL});
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "alloc 1g"), "999");
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
    CHECK_TEXT(client_do(&client, "alloc 1g"), "0");
    CHECK_TEXT(client_do(&client, "free 0"), "999");
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT - GIB, LIMIT));
    CHECK_TEXT(client_do(&client, "free 0"), "0");
    CHECK_TEXT(client_do(&client, "info"), info(LIMIT - CONTEXT, LIMIT));
}

TEST(without_a_context_the_driver_answers)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "alloc 1m"), "3");
    CHECK_TEXT(client_do(&client, "info"), "3 0 0");
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "alloc 1m"), "201");
    CHECK_TEXT(client_do(&client, "info"), "201 0 0");
    CHECK_TEXT(client_errors(&client), "");
}

TEST(limits_that_cannot_be_read_refuse_cuda)
{
    struct world world = world_make();
    char path[WORLD_PATH];
    world_limits(&world, "container=main\nmemory=4096\n", NULL);
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "request: memory=4096: accepted is MiB with the suffix m");
    CHECK_TEXT(client_do(&client, "alloc 1m"), "800");
    CHECK_TEXT(client_do(&client, "nvml 0"), "4 16106127360 16106127360 0 | 4 16106127360 0 16106127360 0");
    /* Repaired, the same process may begin. */
    world_limits(&world, MEMORY, NULL);
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "info"), info(4096 * MIB - CONTEXT, 4096 * MIB));

    CHECK(unlink(world_path(&world, "vgpu/limits/..2/uid", path)) == 0);
    struct client second = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&second, "init"), "800");
    CHECK_HAS(client_errors(&second), "uid: No such file or directory");

    CHECK(unlink(world_path(&world, "vgpu/limits/..data", path)) == 0);
    write_text(path, "not a directory");
    struct client third = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&third, "init"), "800");
    CHECK_HAS(client_errors(&third), "limits: Not a directory");
}

TEST(a_library_file_that_is_gone_is_not_unmanaged)
{
    struct world world = world_make();
    struct client client = client_start(&world, "handle", NULL);
    client_do(&client, "umask"); /* it has begun */
    CHECK(unlink(world.library) == 0);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "libvgpu.so: No such file or directory");
}

/* A kubelet writes a new generation, renames `..data` onto it and removes the old one, file by file. */
TEST(limits_that_are_being_updated_are_never_taken_for_gone)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    pid_t updater = fork();
    if (updater == 0)
        for (;;)
            world_limits_replace(&world, MEMORY, "4147m");
    for (unsigned i = 0; i < 40; i++) {
        struct client client = client_start(&world, "handle", NULL);
        CHECK_TEXT(client_do(&client, "init"), "0");
        CHECK_TEXT(client_do(&client, "total 0"), "0 4348444672");
        CHECK_TEXT(client_do(&client, "context 0"), "0");
        for (unsigned refused = 0; refused < 20; refused++)
            CHECK_TEXT(client_do(&client, "alloc 8g"), "2");
        CHECK(!strstr(client_errors(&client), "stays as it was"));
        client_end(&client);
    }
    kill(updater, SIGKILL);
}
