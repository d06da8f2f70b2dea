#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

static char cache[WORLD_PATH + 64];

/* A process of a container that is not managed, with a region in the world and up to two more variables. */
static struct client start(const struct world *world, const char *one, const char *two)
{
    snprintf(cache, sizeof(cache), "CUDA_DEVICE_MEMORY_SHARED_CACHE=%s/own.cache", world->directory);
    struct client client = client_start(world, "handle", (const char *const[]){cache, one, one ? two : NULL, NULL});
    return client;
}

static void limited(const char *one, const char *two, const char *total)
{
    struct world world = world_make();
    struct client client = start(&world, one, two);
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "total 0"), total);
    client_end(&client);
}

static void refused(const char *one, const char *two, const char *reason)
{
    struct world world = world_make();
    struct client client = start(&world, one, two);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), reason);
    client_end(&client);
}

TEST(the_environment_limits_an_unmanaged_container)
{
    limited("CUDA_DEVICE_MEMORY_LIMIT=1g", NULL, "0 1073741824");
    limited("CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_0=2g", "0 2147483648");
    limited("CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_1=2g", "0 1073741824");
    limited("CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "0 1073741824");
    limited("CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT_0=abc", "0 1073741824");
    limited(NULL, NULL, "0 16106127360");
    limited("CUDA_DEVICE_MEMORY_LIMIT=", NULL, "0 16106127360");
    limited("CUDA_DEVICE_MEMORY_LIMIT=0", NULL, "0 16106127360");
    limited("CUDA_DEVICE_MEMORY_LIMIT=100g", NULL, "0 16106127360");
}

TEST(what_cannot_be_read_one_way_is_refused)
{
    refused("CUDA_DEVICE_MEMORY_LIMIT=abc", NULL, "CUDA_DEVICE_MEMORY_LIMIT=abc: accepted is a whole number");
    refused("CUDA_DEVICE_MEMORY_LIMIT=2GiB", NULL, "CUDA_DEVICE_MEMORY_LIMIT=2GiB: accepted");
    refused("CUDA_DEVICE_MEMORY_LIMIT_0=-1", NULL, "CUDA_DEVICE_MEMORY_LIMIT_0=-1: accepted");
    refused("CUDA_DEVICE_MEMORY_LIMIT=-1", "CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_MEMORY_LIMIT=-1: accepted");
    refused("CUDA_DEVICE_SM_LIMIT=fast", NULL, "CUDA_DEVICE_SM_LIMIT=fast: accepted is a whole number of percent");
}

TEST(the_region_keeps_the_limits_of_who_made_it)
{
    struct world world = world_make();
    struct client first = start(&world, "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL);
    CHECK_TEXT(client_do(&first, "init"), "0");
    struct client second = start(&world, "CUDA_DEVICE_MEMORY_LIMIT=4g", NULL);
    CHECK_TEXT(client_do(&second, "init"), "0");
    CHECK_TEXT(client_do(&second, "total 0"), "0 1073741824");
    CHECK_HAS(client_errors(&second), "limits device 0 to 4294967296 bytes");
    struct client third = start(&world, NULL, NULL);
    CHECK_TEXT(client_do(&third, "init"), "0");
    CHECK_TEXT(client_do(&third, "total 0"), "0 1073741824");
    CHECK_TEXT(client_errors(&third), "");
}

TEST(the_region_path_is_derived_as_hami_core_does)
{
    struct world world = world_make();
    char mount[WORLD_PATH + 32], path[WORLD_PATH];
    struct stat status;
    snprintf(mount, sizeof(mount), "CONTAINER_VGPU_MOUNT=%s/vgpu", world.directory);
    struct client client = client_start(&world, "handle", (const char *const[]){mount, "POD_UID=u1", "CONTAINER_NAME=c1", NULL});
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_EQUAL(stat(world_path(&world, "vgpu/containers/u1_c1/usage.cache", path), &status), 0);
    CHECK_EQUAL(status.st_mode & 07777, 0666);
    CHECK_EQUAL(stat(world_path(&world, "vgpu/containers/u1_c1", path), &status), 0);
    CHECK_EQUAL(status.st_mode & 07777, 0777);
}

/* In a mount namespace of its own, since the fallback is a fixed path. */
TEST(a_region_that_cannot_be_made_falls_back_as_hami_core_does)
{
    struct stat status;
    if (strncmp(CLIENT, "/tmp/", 5) == 0 || strncmp(FAKEGPU, "/tmp/", 5) == 0)
        skip("what is built in /tmp would be hidden");
    setenv("TMPDIR", "/dev/shm", 1);
    struct world world = world_make();
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("tmpfs", "/tmp", "tmpfs", 0, "size=8m") != 0)
        skip("a /tmp of its own needs root");
    struct client client = client_start(
        &world, "handle", (const char *const[]){"CUDA_DEVICE_MEMORY_SHARED_CACHE=/nonexistent/x.cache", "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL});
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "total 0"), "0 1073741824");
    CHECK_HAS(client_errors(&client), "/tmp/cudevshr.cache is used instead");
    CHECK_EQUAL(stat("/tmp/cudevshr.cache", &status), 0);
    client_end(&client);
    /* Not there either: refused with a limit, not counted without one. */
    CHECK_EQUAL(unlink("/tmp/cudevshr.cache"), 0);
    CHECK_EQUAL(mount(NULL, "/tmp", NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    struct client limited = client_start(&world, "handle", (const char *const[]){"CUDA_DEVICE_MEMORY_LIMIT=1g", NULL});
    CHECK_TEXT(client_do(&limited, "init"), "800");
    CHECK_HAS(client_errors(&limited), "cudevshr.lock");
    client_end(&limited);
    struct client unlimited = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&unlimited, "init"), "0");
    CHECK_TEXT(client_do(&unlimited, "context 0"), "0");
    CHECK_TEXT(client_do(&unlimited, "alloc 2g"), "0");
    CHECK_TEXT(client_do(&unlimited, "free 0"), "0");
    CHECK_TEXT(client_do(&unlimited, "info"), "0 16001269760 16106127360");
    CHECK_TEXT(client_do(&unlimited, "nvml 0"), "0 16106127360 16001269760 104857600 | 0 16106127360 0 16001269760 104857600");
    CHECK_HAS(client_errors(&unlimited), "GPU memory is not counted, no limit is set");
    client_end(&unlimited);
    umount("/tmp");
}

TEST(a_process_of_its_own_sees_no_trace)
{
    struct world world = world_make();
    struct client client = start(&world, "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL);
    CHECK_TEXT(client_do(&client, "umask"), "22");
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "umask"), "22");
    CHECK_TEXT(client_errors(&client), "");
}

TEST(warnings_can_be_switched_off)
{
    struct world world = world_make();
    struct client first = start(&world, "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL);
    CHECK_TEXT(client_do(&first, "init"), "0");
    struct client second = start(&world, "CUDA_DEVICE_MEMORY_LIMIT=4g", "LIBCUDA_LOG_LEVEL=0");
    CHECK_TEXT(client_do(&second, "init"), "0");
    CHECK_TEXT(client_errors(&second), "");
}
