#include "state.h"

#include "message.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct mapped_header HEADER = {
    .magic = 0x5550474b4146 /* "FAKGPU" */, .version = 1, .bytes = sizeof(struct state)};
enum { DEVICES_BYTE = 0, FIRST_SLOT_BYTE = 16, LEAST_LOCK_FD = 200, HIGHEST_PID = 4194304 };

const char *const memory_kind_name[MEMORY_KINDS] = {"context", "linear", "managed", "array",
                                                    "pool",    "graph",  "virtual", "module"};

static uint64_t pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

uint64_t state_image_mark(void) {
    uint64_t mark;
    memcpy(&mark, (const void *)getauxval(AT_RANDOM), sizeof mark);
    return mark | 1;
}

static struct flock byte_lock(short type, off_t byte) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

static bool set_lock(int fd, int command, short type, off_t byte) {
    struct flock lock = byte_lock(type, byte);
    int result;
    while ((result = fcntl(fd, command, &lock)) != 0 && errno == EINTR) {
    }
    return result == 0;
}

static void fill_state(void *memory, const char *path) {
    struct state *state = memory;
    char shared[PATH_MAX + 16];
    struct stat folder;
    snprintf(shared, sizeof shared, "%s.shared", path);
    mkdir(shared, 0777);
    chmod(shared, 0777); /* whatever the umask: other users' containers share it */
    state->shared_folder = stat(shared, &folder) == 0 ? folder.st_ino : 0;
    state->host_pid_namespace = pid_namespace();
}

/* Never closed: closing any descriptor of this file would drop the process's lock on its slot. */
static int open_lock_file(const char *state_path) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s.lock", state_path) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        message("cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_uid == geteuid()) {
        fchmod(fd, 0666); /* a container's user must be able to lock */
    }
    int high = fcntl(fd, F_DUPFD_CLOEXEC, LEAST_LOCK_FD); /* out of the way of programs that number descriptors */
    return high >= 0 ? high : fd;
}

/* Of the open file, not of the process: the copies of this code in libcuda and libnvidia-ml exclude each other too. */
static void description_lock(const struct attachment *attachment, int command, short type, int byte) {
    struct flock lock = byte_lock(type, byte);
    while (fcntl(attachment->lock_fd, command, &lock) != 0 && errno == EINTR) {
    }
}

void state_lock(const struct attachment *attachment, int byte) {
    description_lock(attachment, F_OFD_SETLKW, F_WRLCK, byte);
}

void state_unlock(const struct attachment *attachment, int byte) {
    description_lock(attachment, F_OFD_SETLK, F_UNLCK, byte);
}

static const char *device_key(const struct device_config *device) {
    return device->mig_uuid[0] != '\0' ? device->mig_uuid : device->uuid;
}

static bool find_devices(struct attachment *attachment, const struct config *config) {
    struct state *state = attachment->state;
    for (int i = 0; i < config->device_count; i++) {
        const struct device_config *wanted = &config->device[i];
        unsigned count = atomic_load(&state->device_count), index = 0;
        while (index < count && strcmp(state->device[index].uuid, device_key(wanted)) != 0) {
            index++;
        }
        struct state_device *device = &state->device[index];
        if (index == MAX_DEVICES) {
            message("%s knows %d devices already", config->state_path, MAX_DEVICES);
            return false;
        }
        if (index == count) {
            strcpy(device->uuid, device_key(wanted));
            device->memory_bytes = wanted->memory_bytes;
            device->reserved_bytes = wanted->reserved_bytes;
            atomic_store(&state->device_count, count + 1);
        } else if (device->memory_bytes != wanted->memory_bytes || device->reserved_bytes != wanted->reserved_bytes) {
            message("%s:%d: %s has another size in the state file %s", config->path, wanted->first_line,
                    device_key(wanted), config->state_path);
            return false;
        }
        attachment->device_index[i] = (int)index;
    }
    return true;
}

bool state_open(struct attachment *attachment, const struct config *config) {
    *attachment = (struct attachment){.slot = -1, .lock_fd = -1};
    if (snprintf(attachment->shared_path, sizeof attachment->shared_path, "%s.shared", config->state_path) >=
        (int)sizeof attachment->shared_path) {
        message("%s: state is too long a path", config->path);
        return false;
    }
    attachment->state = mapped_open(config->state_path, HEADER, fill_state);
    if (attachment->state == NULL) {
        return false;
    }
    attachment->lock_fd = open_lock_file(config->state_path);
    if (attachment->lock_fd < 0) {
        return false;
    }
    state_lock(attachment, DEVICES_BYTE);
    bool found = find_devices(attachment, config);
    state_unlock(attachment, DEVICES_BYTE);
    return found;
}

static bool is_this_process(const struct process_slot *slot) {
    return atomic_load(&slot->image) == state_image_mark() && atomic_load(&slot->pid) == getpid() &&
           atomic_load(&slot->pid_namespace) == pid_namespace();
}

static void clear_slot(struct state *state, int index) {
    for (int device = 0; device < MAX_DEVICES; device++) {
        atomic_store(&state->held[device][index], 0);
        atomic_store(&state->asked[device][index], 0);
        atomic_store(&state->shared[device][index], 0);
    }
    memset(&state->slot[index], 0, sizeof state->slot[index]);
}

static void fill_slot(struct state *state, int index) {
    struct process_slot *slot = &state->slot[index];
    uint64_t namespace = pid_namespace();
    atomic_store(&slot->pid, getpid());
    atomic_store(&slot->pid_namespace, namespace);
    atomic_store(&slot->host_pid, namespace == state->host_pid_namespace ? getpid() : 0);
    atomic_store(&slot->image, state_image_mark());
    unsigned used = atomic_load(&state->slots_used);
    while (used < (unsigned)index + 1 && !atomic_compare_exchange_weak(&state->slots_used, &used, (unsigned)index + 1)) {
    }
}

bool state_join(struct attachment *attachment) {
    struct state *state = attachment->state;
    int used = (int)atomic_load(&state->slots_used);
    for (int i = 0; i < used; i++) {
        if (is_this_process(&state->slot[i])) {
            attachment->slot = i;
            return true;
        }
    }
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (set_lock(attachment->lock_fd, F_SETLK, F_WRLCK, FIRST_SLOT_BYTE + i)) {
            clear_slot(state, i);
            fill_slot(state, i);
            attachment->slot = i;
            return true;
        }
    }
    message("no free slot: %d processes use the state file", MAX_PROCESSES);
    return false;
}

bool state_slot_lives(const struct attachment *attachment, int index) {
    struct process_slot *slot = &attachment->state->slot[index];
    if (index == attachment->slot || atomic_load(&slot->image) == 0) {
        return atomic_load(&slot->image) != 0;
    }
    struct flock lock = byte_lock(F_WRLCK, FIRST_SLOT_BYTE + index);
    if (fcntl(attachment->lock_fd, F_GETLK, &lock) != 0) {
        message("cannot look at the state's locks: %s", strerror(errno));
        return true;
    }
    if (lock.l_type == F_UNLCK) {
        return is_this_process(slot); /* a process's own locks do not stand in its way */
    }
    if (lock.l_pid > 0 && pid_namespace() == attachment->state->host_pid_namespace) {
        int known = 0;
        /* Another PID than the one known: a new owner that has not cleared the dead one's slot yet. */
        return atomic_compare_exchange_strong(&slot->host_pid, &known, lock.l_pid) || known == lock.l_pid;
    }
    return true;
}

unsigned state_host_pid(const struct attachment *attachment, int index) {
    int pid = atomic_load(&attachment->state->slot[index].host_pid);
    return pid > 0 ? (unsigned)pid : (unsigned)(HIGHEST_PID + index + 1);
}

uint64_t state_capacity(const struct attachment *attachment, int device) {
    const struct state_device *card = &attachment->state->device[device];
    return card->memory_bytes - card->reserved_bytes;
}

uint64_t state_used(const struct attachment *attachment, int device) {
    struct state *state = attachment->state;
    uint64_t sum = 0;
    unsigned used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used; i++) {
        uint64_t held = atomic_load(&state->held[device][i]);
        if (held != 0 && state_slot_lives(attachment, (int)i)) {
            sum += held;
        }
    }
    return sum + shared_used(attachment, device);
}

uint64_t state_process_bytes(const struct attachment *attachment, int device, int slot) {
    const struct state *state = attachment->state;
    return atomic_load(&state->held[device][slot]) + atomic_load(&state->shared[device][slot]);
}

/* Over all slots, the dead included: an upper bound that costs no system call. */
static uint64_t sum_with_dead(const struct attachment *attachment, int device) {
    const struct state *state = attachment->state;
    uint64_t sum = shared_used(attachment, device);
    unsigned used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used; i++) {
        sum += atomic_load(&state->held[device][i]) + atomic_load(&state->asked[device][i]);
    }
    return sum;
}

static uint64_t sum_of_living(const struct attachment *attachment, int device) {
    struct state *state = attachment->state;
    uint64_t sum = shared_used(attachment, device);
    unsigned used = atomic_load(&state->slots_used);
    for (unsigned i = 0; i < used; i++) {
        uint64_t both = atomic_load(&state->held[device][i]) + atomic_load(&state->asked[device][i]);
        if (both != 0 && state_slot_lives(attachment, (int)i)) {
            sum += both;
        }
    }
    return sum;
}

/*
 * Each asker first shows what it asks, then looks at the sum: of two that do not fit together at least one sees the
 * other. Both may, and give way; then they try again, at most ATTEMPTS times, since one that is stopped while it asks
 * would be waited for for ever.
 */
bool state_take(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes) {
    enum { ATTEMPTS = 200 };
    struct state *state = attachment->state;
    uint64_t capacity = state_capacity(attachment, device);
    _Atomic uint64_t *held = &state->held[device][attachment->slot];
    _Atomic uint64_t *asked = &state->asked[device][attachment->slot];
    if (bytes > capacity) {
        return false;
    }
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        atomic_fetch_add(asked, bytes);
        bool fits = sum_with_dead(attachment, device) <= capacity || sum_of_living(attachment, device) <= capacity;
        if (fits) {
            atomic_fetch_add(held, bytes);
            atomic_fetch_sub(asked, bytes);
            atomic_fetch_add(&state->slot[attachment->slot].device[device].by_kind[kind], bytes);
            return true;
        }
        atomic_fetch_sub(asked, bytes);
        if (state_used(attachment, device) + bytes > capacity) {
            return false;
        }
        sched_yield();
    }
    return false;
}

void state_give(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes) {
    struct state *state = attachment->state;
    atomic_fetch_sub(&state->slot[attachment->slot].device[device].by_kind[kind], bytes);
    atomic_fetch_sub(&state->held[device][attachment->slot], bytes);
}

void state_count_context(const struct attachment *attachment, int device, int change) {
    atomic_fetch_add(&attachment->state->slot[attachment->slot].device[device].contexts, (uint32_t)change);
}
