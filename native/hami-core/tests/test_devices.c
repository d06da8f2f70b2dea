#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

static const char unlike_cards[] = "state = gpu.state\n"
                                   "driver = 580.65.06\n"
                                   "cuda = 13.0\n"
                                   "[device]\n"
                                   "name = Tesla T4\n"
                                   "uuid = " T4_UUID "\n"
                                   "memory-mib = 15360\n"
                                   "reserved-mib = 430\n"
                                   "context-mib = 100\n"
                                   "pci = 0000:00:04.0\n"
                                   "[device]\n"
                                   "name = NVIDIA L4\n"
                                   "uuid = GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee\n"
                                   "memory-mib = 24564\n"
                                   "reserved-mib = 500\n"
                                   "context-mib = 200\n"
                                   "sm-count = 60\n"
                                   "compute-capability = 8.9\n"
                                   "pci = 0000:00:05.0\n";

#define HALF "container=main\nfraction=0.5\ndevices=2\n"

static struct world two(void)
{
    struct world world = world_make();
    world_gpu(&world, unlike_cards);
    return world;
}

static struct client start(const struct world *world, const char *one, const char *two)
{
    return client_start(world, "handle", (const char *const[]){one, one ? two : NULL, NULL});
}

static void totals(struct client *client, const char *first, const char *second)
{
    CHECK_TEXT(client_do(client, "init"), "0");
    CHECK_TEXT(client_do(client, "total 0"), first);
    if (second)
        CHECK_TEXT(client_do(client, "total 1"), second);
}

/* 7680 and 12282 MiB: of NVML's figure, though CUDA's is smaller. */
static const char t4[] = "0 8053063680", l4[] = "0 12878610432";

TEST(a_fraction_is_of_each_card_by_nvmls_figure_in_whatever_order_cuda_has_them)
{
    struct world world = two();
    world_limits(&world, HALF, NULL);
    struct client plain = start(&world, NULL, NULL);
    struct client ordered = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", NULL);
    struct client turned = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1,0");
    struct client one = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1");
    struct client named = start(&world, "CUDA_VISIBLE_DEVICES=GPU-aaaa", NULL);
    CHECK_TEXT(client_do(&plain, "init"), "0");
    totals(&ordered, t4, l4);
    totals(&turned, l4, t4);
    totals(&one, l4, NULL);
    totals(&named, l4, NULL);
}

/* The container can write its region. */
TEST(a_region_that_makes_a_card_larger_raises_no_limit)
{
    struct world world = two();
    const uint64_t much = 100 * GIB;
    world_limits(&world, HALF, NULL);
    struct client first = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", NULL);
    totals(&first, t4, l4);
    FILE *region = fopen(world.region, "r+");
    CHECK(region && fseek(region, 2011136 + 4096 + 72, SEEK_SET) == 0 && fwrite(&much, sizeof(much), 1, region) == 1 && fclose(region) == 0);
    struct client second = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", NULL);
    totals(&second, t4, l4);
}

TEST(the_card_that_is_used_pays_whatever_its_number)
{
    struct world world = two();
    world_limits(&world, HALF, NULL);
    struct client client = start(&world, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1");
    /* NVML first, by its own order, in which the card is number 1. */
    CHECK_TEXT(client_do(&client, "nvml 1"), "0 12878610432 12878610432 0 | 0 12878610432 0 12878610432 0");
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "alloc 4g"), "0");
    CHECK_TEXT(client_do(&client, "alloc 4g"), "0");
    CHECK_TEXT(client_do(&client, "alloc 4g"), "2");
    CHECK_TEXT(client_do(&client, "nvml 1"), "0 12878610432 4078960640 8799649792 | 0 12878610432 0 4078960640 8799649792");
    CHECK_TEXT(client_do(&client, "nvml 0"), "0 8053063680 8053063680 0 | 0 8053063680 0 8053063680 0");
    CHECK_HAS(client_errors(&client), "on device 1 (GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee)");
}

TEST(the_environments_numbers_are_nvmls)
{
    struct world world = two();
    char cache[WORLD_PATH + 64];
    snprintf(cache, sizeof(cache), "CUDA_DEVICE_MEMORY_SHARED_CACHE=%s/own.cache", world.directory);
    struct client client =
        client_start(&world, "handle",
                     (const char *const[]){cache, "CUDA_DEVICE_MEMORY_LIMIT_0=1g", "CUDA_DEVICE_MEMORY_LIMIT_1=2g",
                                           "CUDA_VISIBLE_DEVICES=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID", NULL});
    totals(&client, "0 2147483648", NULL);
    CHECK_TEXT(client_do(&client, "nvml 0"), "0 1073741824 1073741824 0 | 0 1073741824 0 1073741824 0");
}

/* The library of a container without the `utility` capability: CUDA and no NVML. */
TEST(without_nvml_a_fraction_is_of_cudas_figure)
{
    struct world world = two();
    char driver[WORLD_PATH], command[3 * WORLD_PATH], path[WORLD_PATH + 32];
    snprintf(command, sizeof(command), "mkdir %s/driver && cp %s/libcuda.so.1 %s/driver/", world.directory, FAKEGPU, world.directory);
    CHECK(system(command) == 0);
    world_limits(&world, HALF, NULL);
    snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", world_path(&world, "driver", driver));
    struct client client = start(&world, path, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    totals(&client, "0 7827619840", "0 12616466432");
    /* KAI's own figure is not cut, though it is above that. */
    world_limits(&world, HALF, "7680m");
    struct client second = start(&world, path, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    totals(&second, t4, NULL);
}

static uint32_t slot_flags(const struct world *world, long slot)
{
    uint32_t flags = 9;
    FILE *region = fopen(world->region, "r");
    CHECK(region && fseek(region, 2011136 + 12288 + 128 * slot + 44, SEEK_SET) == 0 && fread(&flags, 4, 1, region) == 1);
    fclose(region);
    return flags;
}

/* In a PID namespace of its own a process does not know its PID on the node: its context is an estimate, and said to be one. */
TEST(where_the_pid_is_not_known_a_context_is_estimated)
{
    struct world world = world_make();
    int status;
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    struct client outside = start(&world, NULL, NULL);
    CHECK_TEXT(client_do(&outside, "init"), "0");
    CHECK_TEXT(client_do(&outside, "context 0"), "0");
    if (unshare(CLONE_NEWPID) != 0)
        skip("a PID namespace needs root");
    pid_t first = fork();
    if (first == 0) {
        struct client inside = start(&world, NULL, NULL);
        CHECK_TEXT(client_do(&inside, "init"), "0");
        CHECK_TEXT(client_do(&inside, "context 0"), "0");
        CHECK_TEXT(client_do(&inside, "info"), "0 4138729472 4348444672");
        CHECK_TEXT(client_do(&inside, "alloc 3g"), "0");
        CHECK_EQUAL(slot_flags(&world, 0), 0);
        CHECK_EQUAL(slot_flags(&world, 1), 1);
        /* Seen from another namespace of the pod: alive, and its memory with it. */
        CHECK_TEXT(client_do(&outside, "alloc 2g"), "2");
        client_kill(&inside);
        CHECK_TEXT(client_do(&outside, "alloc 2g"), "0");
        _exit(0);
    }
    CHECK(waitpid(first, &status, 0) == first);
    CHECK_EQUAL(status, 0);
}

/* The volume outlives a container's instance, and the next one has the same PIDs. */
TEST(a_restarted_container_begins_at_nothing)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    for (unsigned instance = 0; instance < 3; instance++) {
        int status;
        pid_t keeper = fork();
        if (keeper == 0) {
            if (unshare(CLONE_NEWPID) != 0)
                skip("a PID namespace needs root");
            pid_t first = fork();
            if (first == 0) {
                struct client client = start(&world, NULL, NULL);
                CHECK_TEXT(client_do(&client, "init"), "0");
                CHECK_TEXT(client_do(&client, "context 0"), "0");
                CHECK_TEXT(client_do(&client, "info"), "0 4243587072 4348444672");
                CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
                _exit(0); /* and with it, the namespace's first process, all of it */
            }
            CHECK(waitpid(first, &status, 0) == first);
            _exit(status != 0);
        }
        CHECK(waitpid(keeper, &status, 0) == keeper);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            skip("a PID namespace needs root");
        CHECK_EQUAL(status, 0);
    }
}

TEST(what_the_card_has_not_is_served_from_managed_memory_if_that_is_wanted)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=20000m\n", NULL);
    struct client plain = start(&world, NULL, NULL);
    CHECK_TEXT(client_do(&plain, "init"), "0");
    CHECK_TEXT(client_do(&plain, "context 0"), "0");
    CHECK_TEXT(client_do(&plain, "alloc 16g"), "2");
    client_end(&plain);
    struct client client = start(&world, "CUDA_OVERSUBSCRIBE=true", NULL);
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    CHECK_TEXT(client_do(&client, "alloc 16g"), "0");
    CHECK_TEXT(client_do(&client, "total 0"), "0 16106127360");
    CHECK_TEXT(client_do(&client, "alloc 4g"), "2");
    CHECK_TEXT(client_do(&client, "free 0"), "0");
    CHECK_TEXT(client_do(&client, "alloc 4g"), "0");
}
