#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/region.h"
#include "harness.h"
#include "world.h"

#define MEMORY "container=main\nmemory=4096m\n"

enum { FILE_BYTES = 3203072, HAMI_FILE_BYTES = 2008953, HAMI_V0_FILE_BYTES = 1197897 };

static struct world managed(void)
{
    struct world world = world_make();
    world_limits(&world, MEMORY, "4147m");
    return world;
}

static unsigned char *map_region(const struct world *world)
{
    struct stat status;
    int file = open(world->region, O_RDWR);
    CHECK(file >= 0 && fstat(file, &status) == 0);
    unsigned char *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(bytes != MAP_FAILED);
    close(file);
    return bytes;
}

static uint32_t u32(const unsigned char *bytes, size_t offset)
{
    uint32_t value;
    memcpy(&value, bytes + offset, sizeof(value));
    return value;
}

static uint64_t u64(const unsigned char *bytes, size_t offset)
{
    uint64_t value;
    memcpy(&value, bytes + offset, sizeof(value));
    return value;
}

static struct client started(const struct world *world)
{
    struct client client = client_start(world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "0");
    CHECK_TEXT(client_do(&client, "context 0"), "0");
    return client;
}

/* Numbers of docs/region.md, not of the header. */
TEST(a_region_reads_as_the_page_says)
{
    struct world world = managed();
    struct client client = started(&world);
    CHECK_TEXT(client_do(&client, "alloc 3g"), "0");
    CHECK_TEXT(client_do(&client, "alloc 2g"), "2");
    const unsigned char *r = map_region(&world);
    struct stat status;
    CHECK_EQUAL(stat(world.region, &status), 0);
    CHECK_EQUAL(status.st_size, FILE_BYTES);
    CHECK(status.st_blocks * 512 >= FILE_BYTES);
    CHECK_EQUAL(u32(r, 0), 19920718);
    CHECK_EQUAL(u32(r, 4), 1);
    CHECK_EQUAL(u32(r, 8), 2);
    CHECK_EQUAL(u64(r, 56), 1);
    CHECK_TEXT((const char *)r + 64, T4_UUID);
    CHECK_EQUAL(u64(r, 1600), UINT64_C(4348444672));
    CHECK_EQUAL(u64(r, 1608), 0);
    CHECK_EQUAL(u64(r, 1728), 100);
    CHECK_EQUAL(u32(r, 1856), client.pid);
    CHECK_EQUAL(u64(r, 1856 + 8), CONTEXT);
    CHECK_EQUAL(u64(r, 1856 + 8 + 16), 3 * GIB);
    CHECK_EQUAL(u64(r, 1856 + 8 + 32), 3 * GIB + CONTEXT);
    CHECK_EQUAL(u32(r, 1856 + 1928), 1);
    CHECK_EQUAL(u64(r, 1856 + 1936), 0);
    CHECK_EQUAL(u32(r, 2008896), 1);
    CHECK_EQUAL(u32(r, 2008900), 1);
    CHECK_EQUAL(u32(r, 2008904), 2);
    CHECK_EQUAL(u32(r, 2008908), 1);
    CHECK(u64(r, 2008912) > 1700000000);

    const unsigned char *e = r + 2011136;
    CHECK(memcmp(e, "ISOLATOR", 8) == 0);
    CHECK_EQUAL(u32(e, 8), 1);
    CHECK_EQUAL(u32(e, 12), 1);
    CHECK_EQUAL(u64(e, 16), 1191936);
    CHECK_EQUAL(u32(e, 24), 1024);
    CHECK_EQUAL(u32(e, 28), 16);
    CHECK_EQUAL(u64(e, 4096), 3 * GIB + CONTEXT);
    CHECK_EQUAL(u64(e, 4096 + 8), 2);
    CHECK_EQUAL(u64(e, 4096 + 64), UINT64_C(4348444672));
    CHECK_EQUAL(u64(e, 4096 + 72), 15360 * MIB);
    CHECK_EQUAL(u64(e, 4096 + 80), 15360 * MIB);
    CHECK_EQUAL(u64(e, 4096 + 88), 1);
    CHECK(u64(e, 4096 + 96) > 1700000000);
    CHECK_EQUAL(u64(e, 4096 + 104), 2 * GIB);
    CHECK_EQUAL(u32(e, 12288), 1);
    CHECK_EQUAL(u32(e, 12288 + 4), client.pid);
    CHECK(u64(e, 12288 + 8) > 0);
    CHECK(u64(e, 12288 + 16) > 0);
    CHECK_TEXT((const char *)e + 12288 + 56, "client");
    CHECK_EQUAL(u64(e, 143360 + 8 + 8 * (u64(e, 143360 + 24) & 1)), 3 * GIB + CONTEXT);

    client_kill(&client);
    struct client next = started(&world);
    CHECK_EQUAL(u32(r, 1856), next.pid);
    CHECK_EQUAL(u64(r, 1856 + 8 + 16), 0);
    CHECK_EQUAL(u64(r, 1856 + 8 + 32), CONTEXT);
    CHECK_EQUAL(u64(e, 4096), CONTEXT);
}

TEST(the_lock_file_tells_who_is_attached)
{
    struct world world = managed();
    char path[WORLD_PATH];
    struct client one = started(&world), two = started(&world);
    int file = open(world_path(&world, "vgpu/containers/" WORLD_UID "_main/usage.lock", path), O_RDWR);
    for (unsigned slot = 0; slot < 3; slot++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
        CHECK_EQUAL(fcntl(file, F_GETLK, &lock), 0);
        CHECK_EQUAL(lock.l_type, slot < 2 ? F_WRLCK : F_UNLCK);
        if (slot < 2)
            CHECK_EQUAL(lock.l_pid, slot == 0 ? one.pid : two.pid);
    }
}

static void write_hami(const struct world *world, off_t size, uint32_t major, uint32_t pid)
{
    bool v0 = size == HAMI_V0_FILE_BYTES;
    int32_t magic = 19920718;
    int file = open(world->region, O_RDWR | O_CREAT | O_TRUNC, 0666);
    CHECK(file >= 0 && ftruncate(file, size) == 0);
    CHECK(pwrite(file, &magic, 4, 0) == 4);
    if (!v0)
        CHECK(pwrite(file, &major, 4, 4) == 4);
    CHECK(pwrite(file, &pid, 4, v0 ? 1848 : 1856) == 4);
    close(file);
}

static ino_t inode_of(const struct world *world)
{
    struct stat status;
    CHECK_EQUAL(stat(world->region, &status), 0);
    return status.st_ino;
}

TEST(a_region_that_hami_core_left_is_made_anew_in_place)
{
    static const off_t sizes[] = {HAMI_FILE_BYTES, HAMI_V0_FILE_BYTES};
    for (unsigned i = 0; i < 2; i++) {
        struct world world = managed();
        write_hami(&world, sizes[i], 1, 4194304);
        ino_t before = inode_of(&world);
        struct client client = started(&world);
        CHECK_EQUAL(inode_of(&world), before);
        CHECK_TEXT(client_do(&client, "total 0"), "0 4348444672");
        CHECK_EQUAL(u32(map_region(&world), 1856), client.pid);
    }
}

TEST(a_living_hami_core_is_refused_by_name)
{
    static const off_t sizes[] = {HAMI_FILE_BYTES, HAMI_V0_FILE_BYTES};
    for (unsigned i = 0; i < 2; i++) {
        struct world world = managed();
        char wanted[64];
        write_hami(&world, sizes[i], 1, (uint32_t)getpid());
        map_region(&world); /* this process plays HAMi-core's */
        snprintf(wanted, sizeof(wanted), "process %d uses it with HAMi-core's libvgpu.so", (int)getpid());
        struct client client = client_start(&world, "handle", NULL);
        CHECK_TEXT(client_do(&client, "init"), "800");
        CHECK_HAS(client_errors(&client), wanted);
    }
}

/* Whatever the limits: two libraries that do not see each other's charges must not share a file, nor a card by two files. */
TEST(a_living_hami_core_is_refused_without_a_limit_too)
{
    struct world world = world_make();
    char cache[WORLD_PATH + 64];
    snprintf(world.region, sizeof(world.region), "%.400s/own.cache", world.directory);
    snprintf(cache, sizeof(cache), "CUDA_DEVICE_MEMORY_SHARED_CACHE=%s", world.region);
    write_hami(&world, HAMI_FILE_BYTES, 1, (uint32_t)getpid());
    map_region(&world);
    struct client client = client_start(&world, "handle", (const char *const[]){cache, NULL});
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "with HAMi-core's libvgpu.so");
}

TEST(half_made_and_empty_regions_are_made_anew)
{
    static const off_t sizes[] = {0, 5, HAMI_FILE_BYTES, FILE_BYTES, FILE_BYTES + 4096};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct world world = managed();
        int file = open(world.region, O_RDWR | O_CREAT, 0666);
        CHECK(file >= 0 && ftruncate(file, sizes[i]) == 0);
        struct client client = started(&world);
        CHECK_TEXT(client_do(&client, "total 0"), "0 4348444672");
        close(file);
    }
}

TEST(a_file_that_is_no_region_is_left_alone)
{
    struct world world = managed();
    write_text(world.region, "somebody's notes\n");
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "is not a region");
    struct stat status;
    CHECK_EQUAL(stat(world.region, &status), 0);
    CHECK_EQUAL(status.st_size, 17);
    unlink(world.region);
    CHECK_EQUAL(symlink("/dev/null", world.region), 0);
    CHECK_TEXT(client_do(&client, "init"), "800");
    unlink(world.region);
    CHECK_EQUAL(mkdir(world.region, 0777), 0);
    CHECK_TEXT(client_do(&client, "init"), "800");
}

TEST(another_version_of_the_extension_is_refused_while_used_and_made_anew_after)
{
    struct world world = managed();
    struct client client = started(&world);
    unsigned char *region = map_region(&world);
    region[2011136 + 8] = 2;
    struct client second = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&second, "init"), "800");
    CHECK_HAS(client_errors(&second), "uses it with another version of this library");
    client_kill(&client);
    CHECK_TEXT(client_do(&second, "init"), "0");
    CHECK_EQUAL(region[2011136 + 8], 1);
}

TEST(a_removed_region_gives_no_second_allowance)
{
    struct world world = managed();
    struct client client = started(&world);
    CHECK_TEXT(client_do(&client, "alloc 3800m"), "0");
    CHECK_EQUAL(unlink(world.region), 0);
    struct client second = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&second, "init"), "800");
    CHECK_HAS(client_errors(&second), "was removed while process");
    CHECK_TEXT(client_do(&client, "alloc 1g"), "2");
    CHECK_HAS(client_errors(&client), "usage.cache was removed");
    client_kill(&client);
    CHECK_TEXT(client_do(&second, "init"), "0");
}

TEST(the_directory_of_the_region_is_made_in_the_volume_for_every_user)
{
    struct world world = managed();
    char path[WORLD_PATH];
    struct stat status;
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers/" WORLD_UID "_main", path)), 0);
    struct client client = started(&world);
    CHECK_TEXT(client_do(&client, "alloc 3800m"), "0");
    CHECK_EQUAL(stat(path, &status), 0);
    CHECK_EQUAL(status.st_mode & 07777, 0777);
}

TEST(without_a_volume_for_the_region_cuda_is_refused)
{
    struct world world = managed();
    char path[WORLD_PATH];
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers/" WORLD_UID "_main", path)), 0);
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers", path)), 0);
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "_main: No such file or directory");
    /* A link may lead into the volume of another. */
    CHECK_EQUAL(mkdir(world_path(&world, "vgpu/containers", path), 0777), 0);
    CHECK_EQUAL(mkdir(world_path(&world, "elsewhere", path), 0777), 0);
    CHECK_EQUAL(symlink("../../elsewhere", world_path(&world, "vgpu/containers/" WORLD_UID "_main", path)), 0);
    CHECK_TEXT(client_do(&client, "init"), "800");
}

TEST(a_mounted_directory_of_the_node_is_the_region_s_own)
{
    struct world world = world_make();
    char path[WORLD_PATH];
    struct stat status;
    world_limits(&world, "container=main\nmemory=4096m\nregion=hostPath\n", NULL);
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers/" WORLD_UID "_main", path)), 0);
    /* As the kubelet makes it, in the image of the directory that libsync keeps. */
    CHECK_EQUAL(chmod(world_path(&world, "vgpu/containers", path), 01777), 0);
    struct client client = started(&world);
    CHECK_TEXT(client_do(&client, "alloc 3800m"), "0");
    CHECK_EQUAL(stat(world_path(&world, "vgpu/containers/usage.cache", path), &status), 0);
    CHECK_EQUAL(stat(world_path(&world, "vgpu/containers/usage.lock", path), &status), 0);
    CHECK(stat(world_path(&world, "vgpu/containers/" WORLD_UID "_main", path), &status) != 0);
    client_end(&client);
}

TEST(a_directory_of_the_node_that_is_not_mounted_is_not_made)
{
    struct world world = world_make();
    char path[WORLD_PATH];
    world_limits(&world, "container=main\nmemory=4096m\nregion=hostPath\n", NULL);
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers/" WORLD_UID "_main", path)), 0);
    CHECK_EQUAL(rmdir(world_path(&world, "vgpu/containers", path)), 0);
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "vgpu/containers: No such file or directory");
    CHECK(access(path, F_OK) != 0);
}

TEST(more_processes_than_slots_are_refused)
{
    struct world world = managed();
    char path[WORLD_PATH];
    struct client client = started(&world);
    int file = open(world_path(&world, "vgpu/containers/" WORLD_UID "_main/usage.lock", path), O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1023};
    CHECK_EQUAL(fcntl(file, F_SETLK, &lock), 0);
    struct client second = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&second, "init"), "800");
    CHECK_HAS(client_errors(&second), "all 1024 slots are in use");
    CHECK_TEXT(client_do(&client, "alloc 1g"), "0");
}

/* A stopped process may have been about to change what all share. */
TEST(who_holds_the_gate_is_named)
{
    struct world world = managed();
    char path[WORLD_PATH], wanted[64];
    struct client client = started(&world);
    int file = open(world_path(&world, "vgpu/containers/" WORLD_UID "_main/usage.lock", path), O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1024, .l_len = 1};
    CHECK_EQUAL(fcntl(file, F_SETLK, &lock), 0);
    snprintf(wanted, sizeof(wanted), "process %d has held its lock for 10 seconds", (int)getpid());
    struct client second = client_start(&world, "handle", NULL);
    client_tell(&second, "init");
    CHECK_TEXT(client_do(&client, "alloc 1g"), "0");
    CHECK_TEXT(client_do(&second, "umask"), "800"); /* what it was told before */
    CHECK_HAS(client_errors(&second), wanted);
}

/* Nobody's output may end up in a region. */
TEST(a_program_without_standard_streams_gets_no_other_file_in_their_place)
{
    struct world world = managed();
    struct region region = REGION_INITIALIZER;
    char reason[REASON_BYTES];
    for (int file = 0; file <= 2; file++)
        close(file);
    if (!region_open(&region, world.region, true, reason) || region.lock_file <= 2)
        _exit(2);
    for (int file = 0; file <= 2; file++)
        if (fcntl(file, F_GETFD) >= 0)
            _exit(3);
}

TEST(many_that_start_together_share_one_region)
{
    enum { CLIENTS = 16 };
    struct world world = managed();
    struct client clients[CLIENTS];
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = client_start(&world, "handle", NULL);
    for (unsigned i = 0; i < CLIENTS; i++)
        CHECK(write(clients[i].commands, "init\n", 5) == 5);
    for (unsigned i = 0; i < CLIENTS; i++) {
        char answer[2];
        CHECK(read(clients[i].answers, answer, 2) == 2 && answer[0] == '0');
        CHECK_TEXT(client_do(&clients[i], "context 0"), "0");
        CHECK_TEXT(client_do(&clients[i], "alloc 100m"), "0");
    }
    CHECK_TEXT(client_do(&clients[3], "info"), "0 993001472 4348444672");
}

/* A full disk is an error when the region is made, and not a SIGBUS when a page of it is written. */
TEST(a_full_volume_is_refused_in_time)
{
    struct world world = managed();
    char path[WORLD_PATH];
    world_path(&world, "vgpu/containers", path);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", path, "tmpfs", 0, "size=1m") != 0)
        skip("a file system of its own needs root: %s", strerror(errno));
    struct client client = client_start(&world, "handle", NULL);
    CHECK_TEXT(client_do(&client, "init"), "800");
    CHECK_HAS(client_errors(&client), "No space left on device");
    CHECK_EQUAL(mount("tmpfs", path, NULL, MS_REMOUNT, "size=8m"), 0);
    CHECK_TEXT(client_do(&client, "init"), "0");
    client_end(&client);
    umount(path);
}
