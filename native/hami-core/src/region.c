#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "environment.h"
#include "file_status.h"
#include "identity.h"
#include "record_lock.h"

enum { FILE_MODE = 0666, OPEN_FLAGS = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };

static bool fail(char *reason, const char *path, const char *what)
{
    snprintf(reason, REASON_BYTES, "%.160s: %s", path, what);
    return false;
}

/* `DIR/usage.cache` to `DIR/usage.lock`; a name without `.cache` gets the new ending added. */
static void sibling(const char *path, const char *ending, char *buffer, size_t bytes)
{
    size_t length = strlen(path);
    static const char cache[] = ".cache";
    if (length > sizeof(cache) - 1 && strcmp(path + length - (sizeof(cache) - 1), cache) == 0)
        length -= sizeof(cache) - 1;
    snprintf(buffer, bytes, "%.*s%s", (int)length, path, ending);
}

/* Every process of the container may be another user; the program's umask is not ours to change. */
static int create(const char *path)
{
    int file = open(path, OPEN_FLAGS | O_CREAT | O_EXCL, FILE_MODE);
    if (file >= 0 && fchmod(file, FILE_MODE) != 0) {
        int error = errno;
        close(file);
        errno = error;
        return -1;
    }
    return file;
}

/* A program that has closed its standard streams must not find ours in their place. Before any lock is taken: closing a descriptor
 * drops them. */
static int above_standard(int file)
{
    if (file < 0 || file > STDERR_FILENO)
        return file;
    int moved = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(file);
    return moved;
}

/* A program that closes what it did not open may have a file of its own under the number. */
static bool has_lock_file(const struct region *region)
{
    struct stat status;
    return region->lock_file >= 0 && descriptor_status(region->lock_file, &status) && status.st_dev == region->lock_device &&
           status.st_ino == region->lock_inode;
}

bool region_keep_lock_file(struct region *region, char *reason)
{
    char path[PATH_BYTES + 8];
    struct stat status;

    if (has_lock_file(region))
        return true;
    sibling(region->path, ".lock", path, sizeof(path));
    region->lock_file = open(path, OPEN_FLAGS);
    if (region->lock_file < 0 && errno == ENOENT) {
        region->lock_file = create(path);
        if (region->lock_file < 0 && errno == EEXIST)
            region->lock_file = open(path, OPEN_FLAGS);
    }
    region->lock_file = above_standard(region->lock_file);
    if (region->lock_file < 0 || !descriptor_status(region->lock_file, &status))
        return fail(reason, path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(reason, path, "is not a regular file");
    region->lock_device = status.st_dev;
    region->lock_inode = status.st_ino;
    return true;
}

bool region_gate(struct region *region, bool exclusive, char *reason)
{
    pid_t holder;
    if (record_lock_wait(region->lock_file, exclusive ? F_WRLCK : F_RDLCK, LOCK_BYTE_GATE, 1, &holder))
        return true;
    if (holder < 0)
        return fail(reason, region->path, strerror(errno));
    snprintf(reason, REASON_BYTES, "%.128s: process %d has held its lock for 10 seconds", region->path, (int)holder);
    return false;
}

void region_gate_drop(struct region *region)
{
    record_lock_drop(region->lock_file, LOCK_BYTE_GATE, 1);
}

/* Blocks are taken now: a full disk is an error here and not a SIGBUS at the first write to a page. */
static int allocate(int file)
{
    static const char zeros[65536];
    int error = posix_fallocate(file, 0, sizeof(struct region_file));
    if (error != EOPNOTSUPP && error != EINVAL)
        return error;
    for (off_t at = 0; at < (off_t)sizeof(struct region_file);) {
        size_t left = sizeof(struct region_file) - (size_t)at;
        ssize_t written = pwrite(file, zeros, left < sizeof(zeros) ? left : sizeof(zeros), at);
        if (written < 0)
            return errno;
        at += written;
    }
    return 0;
}

static void fill(struct region_file *file, bool managed)
{
    struct hami_region *hami = &file->hami;
    struct extension_header *header = &file->extension.header;

    memset(file, 0, sizeof(*file));
    hami->major_version = HAMI_MAJOR;
    hami->minor_version = HAMI_MINOR;
    hami->utilization_switch = 1;
    hami->recent_kernel = 2;
    hami->priority = environment_priority();
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        hami->sm_limit[device] = 100;
    hami->last_kernel_time = clock_unix_seconds();
    memcpy(header->magic, EXTENSION_MAGIC, sizeof(header->magic));
    header->version = EXTENSION_VERSION;
    header->flags = managed ? EXTENSION_FLAG_MANAGED : 0;
    header->bytes = sizeof(struct extension);
    header->slots = REGION_SLOTS;
    header->devices = REGION_DEVICES;
    header->created = clock_unix_seconds();
    __atomic_store_n(&hami->magic, HAMI_MAGIC, __ATOMIC_RELEASE);
}

static bool map(struct region *region, int file, char *reason)
{
    struct stat status;
    void *mapped = mmap(NULL, sizeof(struct region_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED || !descriptor_status(file, &status))
        return fail(reason, region->path, strerror(errno));
    region->file = mapped;
    region->device = status.st_dev;
    region->inode = status.st_ino;
    return true;
}

static void unmap(struct region *region)
{
    munmap(region->file, sizeof(struct region_file));
    region->file = NULL;
}

bool region_is_ours(const struct region_file *file)
{
    const struct extension_header *header = &file->extension.header;
    return __atomic_load_n(&file->hami.magic, __ATOMIC_ACQUIRE) == HAMI_MAGIC && file->hami.major_version == HAMI_MAJOR &&
           memcmp(header->magic, EXTENSION_MAGIC, sizeof(header->magic)) == 0 && header->version == EXTENSION_VERSION &&
           header->bytes == sizeof(struct extension);
}

/* Under the exclusive gate. */
static bool make(struct region *region, char *reason)
{
    char path[PATH_BYTES + 8];
    sibling(region->path, ".new", path, sizeof(path));
    unlink(path);
    int file = create(path);
    /* What another user left, in a directory whose sticky bit lets only him remove it. */
    if (file < 0 && errno == EEXIST)
        file = open(path, OPEN_FLAGS);
    if (file < 0)
        return fail(reason, path, strerror(errno));
    int error = ftruncate(file, sizeof(struct region_file)) == 0 ? allocate(file) : errno;
    bool made = error ? fail(reason, path, strerror(error)) : map(region, file, reason);
    close(file);
    if (made) {
        fill(region->file, region->managed);
        if (link(path, region->path) != 0) {
            made = fail(reason, region->path, strerror(errno));
            unmap(region);
        }
    }
    unlink(path);
    return made;
}

/* A process that HAMi-core counts in this file, 0 if there is none. It locks no byte of ours, so /proc tells. */
static uint32_t living_hami_process(const struct region *region, const struct stat *status, int file)
{
    enum { V0_SLOTS = 1848, V0_SLOT_BYTES = 1168 };
    bool v0 = status->st_size < HAMI_BYTES;
    off_t slots = v0 ? V0_SLOTS : (off_t)offsetof(struct hami_region, procs);
    off_t slot_bytes = v0 ? V0_SLOT_BYTES : (off_t)sizeof(struct hami_slot);
    uint32_t self = (uint32_t)getpid(), pid;

    for (off_t i = 0; i < REGION_SLOTS; i++) {
        bool known;
        if (pread(file, &pid, sizeof(pid), slots + i * slot_bytes) != sizeof(pid) || pid == 0 || pid == self)
            continue;
        if (pid_maps_file(pid, (struct mapped_file){status->st_dev, status->st_ino, region->path}, &known) || (!known && kill((pid_t)pid, 0) == 0))
            return pid;
    }
    return 0;
}

static bool may_be_remade(struct region *region, const struct stat *status, int file, char *reason)
{
    int32_t magic = 0;
    pid_t attached = record_lock_holder(region->lock_file, 0, REGION_SLOTS);
    uint32_t living;

    region->in_use = attached >= 0;
    if (attached >= 0) {
        snprintf(reason, REASON_BYTES, "%.128s: process %d uses it with another version of this library", region->path,
                 (int)attached);
        return false;
    }
    if (status->st_size > 0 && (pread(file, &magic, sizeof(magic), 0) != sizeof(magic) || (magic != 0 && magic != HAMI_MAGIC)))
        return fail(reason, region->path, "is not a region");
    if (magic == HAMI_MAGIC && (living = living_hami_process(region, status, file)) != 0) {
        region->in_use = true;
        snprintf(reason, REASON_BYTES,
                 "%.128s: process %u uses it with HAMi-core's libvgpu.so, which would not see what this library grants",
                 region->path, living);
        return false;
    }
    return true;
}

/* Under the exclusive gate: the same inode, since whoever mapped it must see the new content and not keep an allowance of its own. */
static bool remake(struct region *region, int file, char *reason)
{
    struct stat status;
    if (!descriptor_status(file, &status))
        return fail(reason, region->path, strerror(errno));
    if (!may_be_remade(region, &status, file, reason))
        return false;
    int error = ftruncate(file, sizeof(struct region_file)) == 0 ? allocate(file) : errno;
    if (error)
        return fail(reason, region->path, strerror(error));
    if (!map(region, file, reason))
        return false;
    fill(region->file, region->managed);
    return true;
}

/* Maps a region that is ready to use. False with an empty reason: it is not there or not ready, and the gate is needed. */
static bool open_ready(struct region *region, int *file, char *reason)
{
    struct stat status;

    reason[0] = '\0';
    *file = open(region->path, OPEN_FLAGS);
    if (*file < 0)
        return errno == ENOENT ? false : fail(reason, region->path, strerror(errno));
    if (!descriptor_status(*file, &status))
        return fail(reason, region->path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(reason, region->path, "is not a regular file");
    if (status.st_size != sizeof(struct region_file))
        return false;
    if (!map(region, *file, reason))
        return false;
    if (region_is_ours(region->file))
        return true;
    unmap(region);
    return false;
}

static bool open_under_gate(struct region *region, char *reason)
{
    int file;
    bool opened = open_ready(region, &file, reason);

    if (!opened && !reason[0] && file >= 0)
        opened = remake(region, file, reason);
    else if (!opened && !reason[0]) {
        pid_t attached = record_lock_holder(region->lock_file, 0, REGION_SLOTS);
        region->in_use = attached >= 0;
        if (attached < 0)
            opened = make(region, reason);
        else
            snprintf(reason, REASON_BYTES, "%.128s: was removed while process %d uses it; end that process first", region->path,
                     (int)attached);
    }
    if (file >= 0)
        close(file);
    return opened;
}

bool region_open(struct region *region, const char *path, bool managed, char *reason)
{
    int file;

    if (region->file && strcmp(region->path, path) == 0)
        return region_keep_lock_file(region, reason);
    region->managed = managed;
    region->in_use = false;
    snprintf(region->path, sizeof(region->path), "%s", path);
    if (!region_keep_lock_file(region, reason))
        return false;
    bool opened = open_ready(region, &file, reason);
    if (file >= 0)
        close(file);
    if (opened || reason[0])
        return opened;
    if (!region_gate(region, true, reason))
        return false;
    opened = open_under_gate(region, reason);
    region_gate_drop(region);
    return opened;
}

bool region_in_place(const struct region *region)
{
    struct stat status;
    return file_status(region->path, &status) && status.st_dev == region->device && status.st_ino == region->inode;
}

void region_watch(struct region *region, const char *path)
{
    char lock_path[PATH_BYTES + 8];
    struct stat status;

    snprintf(region->path, sizeof(region->path), "%s", path);
    if (has_lock_file(region))
        return;
    sibling(path, ".lock", lock_path, sizeof(lock_path));
    region->lock_file = open(lock_path, OPEN_FLAGS);
    if (region->lock_file < 0)
        region->lock_file = open(lock_path, (OPEN_FLAGS & ~O_RDWR) | O_RDONLY);
    region->lock_file = above_standard(region->lock_file);
    if (region->lock_file >= 0 && descriptor_status(region->lock_file, &status)) {
        region->lock_device = status.st_dev;
        region->lock_inode = status.st_ino;
    }
}

const struct region_file *region_map_to_read(const char *path)
{
    struct stat status;
    void *mapped = MAP_FAILED;
    int file = open(path, (OPEN_FLAGS & ~O_RDWR) | O_RDONLY);
    if (file < 0)
        return NULL;
    if (descriptor_status(file, &status) && S_ISREG(status.st_mode) && status.st_size == sizeof(struct region_file))
        mapped = mmap(NULL, sizeof(struct region_file), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return NULL;
    if (region_is_ours(mapped))
        return mapped;
    munmap(mapped, sizeof(struct region_file));
    return NULL;
}
