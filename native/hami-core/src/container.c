#define _GNU_SOURCE
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "devices.h"
#include "driver.h"
#include "environment.h"
#include "ledger.h"
#include "message.h"
#include "own_path.h"
#include "preload.h"
#include "signals.h"
#include "slot.h"

struct process *process;
struct container container = {.region = REGION_INITIALIZER};

static struct limit_files files;
static uint64_t own_limit = LIMIT_NONE;
static struct card cards[REGION_DEVICES];
static uint64_t limits[REGION_DEVICES];
static uint64_t cores = 100, priority = 1;
static uint64_t limits_read_at, refused_said_at;
static bool said_invalid;
static char directory[PATH_BYTES], library[PATH_BYTES];

/* Why this process may not use CUDA, at most once a second. */
static void say_refused(const char *reason)
{
    uint64_t now = clock_coarse(), before = __atomic_exchange_n(&refused_said_at, now, __ATOMIC_RELAXED);
    if (before == 0 || now - before >= NANOSECONDS_A_SECOND)
        message(MESSAGE_ERROR, "CUDA is refused, because the GPU memory limit of this container cannot be enforced: %s", reason);
}

static struct process *get_process(void)
{
    struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE), *expected = NULL;

    if (mine && mine->owner && mine->owner != (uint32_t)getpid())
        memset(mine, 0, sizeof(*mine));
    if (mine)
        return mine;
    mine = mmap(NULL, sizeof(*mine), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine == MAP_FAILED)
        return NULL;
    if (madvise(mine, sizeof(*mine), MADV_WIPEONFORK) != 0)
        mine->owner = (uint32_t)getpid();
    if (__atomic_compare_exchange_n(&process, &expected, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mine;
    munmap(mine, sizeof(*mine));
    return expected;
}

/* Files are read and NVML is asked under this lock: a signal's handler, which may leave by siglongjmp or pthread_exit, waits. */
static sigset_t take_starting(struct process *mine)
{
    sigset_t before = signals_hold();
    lock_take(&mine->starting);
    return before;
}

static void drop_starting(struct process *mine, const sigset_t *before)
{
    lock_drop(&mine->starting);
    signals_release(before);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Where the limits come from. LIMITS_INVALID: reason. Under the lock `starting`. */
static enum limits_answer read_limit_files(struct limit_files *read, char *reason)
{
    if (!own_directory(directory, sizeof(directory)) || !own_file(library, sizeof(library))) {
        snprintf(reason, REASON_BYTES, "the library's own file cannot be found");
        return LIMITS_INVALID;
    }
    return limit_files_read(directory, library, read, reason);
}

static bool region_path_of(const struct limit_files *read, char *path, size_t bytes, char *reason)
{
    if (limit_files_region_path(read, directory, path, bytes))
        return true;
    snprintf(reason, REASON_BYTES, "the region's path is too long");
    return false;
}

/* What a process lowers for itself is not the container's limit, which monitors read. */
static void store_limit(unsigned device, uint64_t limit)
{
    struct region_file *file = container.region.file;
    uint64_t shown = limit == LIMIT_NONE ? 0 : limit;

    __atomic_store_n(&limits[device], smaller(limit, own_limit), __ATOMIC_RELAXED);
    __atomic_store_n(&file->hami.limit[device], shown, __ATOMIC_RELAXED);
    __atomic_store_n(&file->extension.devices[device].limit, shown, __ATOMIC_RELAXED);
    __atomic_store_n(&file->hami.sm_limit[device], files.request.cores, __ATOMIC_RELAXED);
}

static void compute_limits(void)
{
    __atomic_store_n(&cores, files.request.cores, __ATOMIC_RELAXED);
    __atomic_store_n(&priority, files.request.priority, __ATOMIC_RELAXED);
    __atomic_store_n(&container.region.file->hami.priority, (int32_t)files.request.priority, __ATOMIC_RELAXED);
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        if (device_is_visible(device))
            store_limit(device, limit_on_card(&files, cards[device]));
}

/* Under the lock `starting`. */
static void read_limits_again(void)
{
    struct limit_files read;
    char reason[REASON_BYTES];
    int saved = errno;

    __atomic_store_n(&limits_read_at, clock_coarse(), __ATOMIC_RELAXED);
    enum limits_answer answer = limit_files_read(directory, library, &read, reason);
    bool valid = answer == LIMITS_READ && (read.has_kai || !files.has_kai);
    if (answer == LIMITS_UNMANAGED)
        snprintf(reason, sizeof(reason), "%.128s/limits is gone", directory);
    else if (answer == LIMITS_READ && !valid)
        snprintf(reason, sizeof(reason), "CUDA_DEVICE_MEMORY_LIMIT is gone from %.128s/limits", directory);
    if (valid) {
        files = read;
        compute_limits();
    } else if (!said_invalid) {
        message(MESSAGE_WARNING, "the GPU memory limit stays as it was: %s", reason);
    }
    said_invalid = !valid;
    errno = saved;
}

static SLOW void try_to_read_limits_again(void)
{
    sigset_t before = signals_hold();
    if (lock_try(&process->starting)) {
        read_limits_again();
        lock_drop(&process->starting);
    }
    signals_release(&before);
}

void container_refresh(void)
{
    if (!container.managed)
        return;
    sigset_t before = take_starting(process);
    read_limits_again();
    drop_starting(process, &before);
}

HOT uint64_t container_limit(unsigned device)
{
    if (!container.managed) {
        uint64_t limit = __atomic_load_n(&container.region.file->hami.limit[device], __ATOMIC_RELAXED);
        return limit ? limit : LIMIT_NONE;
    }
    uint64_t read_at = __atomic_load_n(&limits_read_at, __ATOMIC_RELAXED), now = clock_coarse();
    if (now - read_at >= NANOSECONDS_A_SECOND)
        try_to_read_limits_again();
    return __atomic_load_n(&limits[device], __ATOMIC_RELAXED);
}

uint64_t container_cores(unsigned device)
{
    return container.managed ? __atomic_load_n(&cores, __ATOMIC_RELAXED)
                             : __atomic_load_n(&container.region.file->hami.sm_limit[device], __ATOMIC_RELAXED);
}

bool container_is_first(void)
{
    return container.managed && __atomic_load_n(&priority, __ATOMIC_RELAXED) == 0;
}

/* HAMi: whoever makes the region writes the environment's limits into it. */
static bool stamp_environment(struct region_file *file, unsigned device, char *reason)
{
    uint64_t bytes, percent;
    if (!environment_memory_limit(device, &bytes, reason) || !environment_cores(device, &percent, reason))
        return false;
    file->hami.limit[device] = bytes == LIMIT_NONE ? 0 : bytes;
    file->extension.devices[device].limit = file->hami.limit[device];
    file->hami.sm_limit[device] = percent;
    return true;
}

/* The limits files' limits follow when the card's memory is known. Device 0 is stamped once in a region's life. */
static bool stamp_managed(struct region_file *file, unsigned device, char *reason)
{
    (void)file;
    (void)reason;
    if (device == 0)
        preload_say_gap(library);
    return true;
}

/* Looks at the directory of a region, a link in whose place could lead into another's volume. `make`: it lies below a volume whose
 * mount cannot name the pod's UID, and is made for every user of the container; else it is the volume. */
static bool find_region_directory(const char *path, bool make, char *reason)
{
    char parent[PATH_BYTES];
    snprintf(parent, sizeof(parent), "%s", path);
    *strrchr(parent, '/') = '\0';
    if (make && mkdir(parent, 0777) == 0)
        chmod(parent, 0777);
    int opened = open(parent, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (opened >= 0)
        close(opened);
    else
        snprintf(reason, REASON_BYTES, "%.160s: %s", parent, strerror(errno));
    return opened >= 0;
}

static bool start_managed(char *reason)
{
    char path[PATH_BYTES];
    if (!environment_own_limit(&own_limit, reason) || !region_path_of(&files, path, sizeof(path), reason))
        return false;
    snprintf(container.name, sizeof(container.name), "%s", files.request.container);
    if (files.request.unknown_key[0])
        message(MESSAGE_WARNING, "unknown key %s in %.128s/limits/request is ignored", files.request.unknown_key, directory);
    if (!find_region_directory(path, !files.request.region_is_mounted, reason) || !region_open(&container.region, path, true, reason))
        return false;
    return true;
}

static bool any_limit(char *reason)
{
    uint64_t bytes;
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        if (!environment_memory_limit(device, &bytes, reason) || bytes != LIMIT_NONE)
            return true;
    return false;
}

/* HAMi: the directory below the mount is made if need be, and a path that does not work gives way to the one in /tmp. */
static bool start_unmanaged(char *reason)
{
    char path[PATH_BYTES];
    bool derived;

    if (!environment_region_path(path, sizeof(path), &derived))
        snprintf(path, sizeof(path), "%s", REGION_FALLBACK);
    if ((!derived || find_region_directory(path, true, reason)) && region_open(&container.region, path, false, reason))
        return true;
    if (container.region.in_use || strcmp(path, REGION_FALLBACK) == 0)
        return false;
    message(MESSAGE_WARNING, "%s; %s is used instead", reason, REGION_FALLBACK);
    return region_open(&container.region, REGION_FALLBACK, false, reason);
}

/* HAMi: a later process keeps the limits of the one that made the region. */
static void compare_with_environment(void)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        uint64_t bytes, held = container.region.file->hami.limit[device];
        char reason[REASON_BYTES];
        if (device_is_visible(device) && environment_memory_limit(device, &bytes, reason) && bytes != LIMIT_NONE && bytes != held)
            message(MESSAGE_WARNING, "the environment limits device %u to %llu bytes, but the container's region %s says %llu, which holds",
                    device, (unsigned long long)bytes, container.region.path, (unsigned long long)held);
    }
}

static bool attach(struct process *mine, char *reason)
{
    struct container *c = &container;

    c->self = identity_of_self();
    mine->slot = slot_take(&c->region, &c->self, reason);
    if (mine->slot == SLOT_NONE)
        return false;
    if (!devices_register(&c->region, c->managed ? stamp_managed : stamp_environment, reason)) {
        slot_drop(&c->region, mine->slot);
        return false;
    }
    if (c->managed) {
        for (unsigned device = 0; device < REGION_DEVICES; device++)
            cards[device] = devices_card(c->region.file, device);
        compute_limits();
        limits_read_at = clock_coarse();
    } else {
        compare_with_environment();
    }
    return true;
}

static CUresult start(struct process *mine)
{
    char reason[REASON_BYTES] = "";
    CUresult result = devices_discover();
    if (result != CUDA_SUCCESS)
        return result;
    enum limits_answer answer = read_limit_files(&files, reason);
    bool opened = false;

    container.managed = answer != LIMITS_UNMANAGED;
    if (answer == LIMITS_READ)
        opened = start_managed(reason);
    else if (answer == LIMITS_UNMANAGED)
        opened = start_unmanaged(reason);
    if (opened && attach(mine, reason)) {
        __atomic_store_n(&mine->attachment, COUNTED, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    }
    if (answer == LIMITS_UNMANAGED && !opened && !container.region.in_use) {
        char unlimited[REASON_BYTES];
        if (!any_limit(unlimited)) {
            message(MESSAGE_WARNING, "GPU memory is not counted, no limit is set: %s", reason);
            __atomic_store_n(&mine->attachment, UNCOUNTED, __ATOMIC_RELEASE);
            return CUDA_SUCCESS;
        }
    }
    say_refused(reason);
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult container_start(void)
{
    int saved = errno;
    CUresult result = CUDA_SUCCESS;
    struct process *mine;

    if (!driver_find_cuda())
        return CUDA_ERROR_STUB_LIBRARY;
    mine = get_process();
    if (!mine) {
        say_refused("no memory");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    sigset_t before = take_starting(mine);
    if (mine->attachment == NOT_ATTACHED)
        result = start(mine);
    drop_starting(mine, &before);
    errno = saved;
    return result;
}

uint32_t container_host_pid_of(unsigned slot)
{
    /* PROC_PID_INIT_INO: the inode of the first PID namespace, fixed in the kernel's interface. */
    const uint64_t first_pid_namespace = 0xeffffffc;
    const struct extension_slot *process_slot = &container.region.file->extension.slots[slot];
    if (process_slot->pid_namespace == first_pid_namespace)
        return process_slot->pid;
    uint64_t told = __atomic_load_n(&process_slot->host, __ATOMIC_RELAXED);
    return told >> 32 == slot_mark(process_slot) ? (uint32_t)told : 0;
}

uint32_t container_host_pid(void)
{
    return container_host_pid_of(process->slot);
}

void container_mark_estimated(bool estimated)
{
    uint32_t *flags = &container.region.file->extension.slots[process->slot].flags;
    if (estimated)
        __atomic_fetch_or(flags, SLOT_ESTIMATED, __ATOMIC_RELAXED);
    else
        __atomic_fetch_and(flags, ~(uint32_t)SLOT_ESTIMATED, __ATOMIC_RELAXED);
}

/* For a process that never attached: nothing is made, no slot is taken. */
static void look_from_outside(struct process *mine, struct sight *sight)
{
    char path[PATH_BYTES], reason[REASON_BYTES];
    bool derived;
    bool found = sight->managed ? region_path_of(&sight->files, path, sizeof(path), reason)
                                : environment_region_path(path, sizeof(path), &derived);
    if (!found)
        return;
    sigset_t before = take_starting(mine);
    if (container.region.file)
        region_keep_lock_file(&container.region, reason);
    else
        region_watch(&container.region, path);
    sight->file = container.region.file ? container.region.file : region_map_to_read(path);
    sight->borrowed = container.region.file != NULL;
    drop_starting(mine, &before);
}

bool container_look(struct sight *sight)
{
    char reason[REASON_BYTES] = "no memory";
    int saved = errno;
    struct process *mine = get_process();

    *sight = (struct sight){.file = NULL};
    if (mine && mine->attachment == UNCOUNTED)
        return true;
    enum limits_answer answer = LIMITS_INVALID;
    if (mine) {
        sigset_t before = take_starting(mine);
        answer = read_limit_files(&sight->files, reason);
        drop_starting(mine, &before);
    }
    sight->managed = answer == LIMITS_READ;
    if (answer != LIMITS_INVALID)
        look_from_outside(mine, sight);
    else
        say_refused(reason);
    errno = saved;
    return answer != LIMITS_INVALID;
}

void container_look_away(const struct sight *sight)
{
    if (sight->file && !sight->borrowed)
        munmap((void *)sight->file, sizeof(*sight->file));
}

bool sight_limit(const struct sight *sight, unsigned index, unsigned nvml_index, struct card card, uint64_t *limit)
{
    char reason[REASON_BYTES];
    uint64_t lowered;
    bool known;

    if (sight->managed) {
        known = environment_own_limit(&lowered, reason);
        *limit = known ? smaller(limit_on_card(&sight->files, card), lowered) : 0;
    } else if (sight->file && index != DEVICE_NONE) {
        known = true;
        *limit = sight->file->hami.limit[index] ? sight->file->hami.limit[index] : LIMIT_NONE;
    } else {
        known = environment_memory_limit(nvml_index, limit, reason);
    }
    if (!known)
        say_refused(reason);
    return known;
}
