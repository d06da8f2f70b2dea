#include "shared.h"

#include "message.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool parse_name(const char *name, struct shared *shared) {
    int used = 0;
    return sscanf(name, "%16" SCNx64 "-%d-%" SCNu64 "%n", &shared->id, &shared->device, &shared->bytes, &used) == 3 &&
           name[used] == '\0';
}

static bool path_of(const struct attachment *attachment, const char *prefix, const struct shared *shared,
                    char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s/%s%016" PRIx64 "-%d-%" PRIu64, attachment->shared_path, prefix, shared->id,
                    shared->device, shared->bytes) < PATH_MAX;
}

static bool description_lock(int fd, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool is_held(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* A container that got the state file without its folder would make memory that nobody else counts. */
static bool folder_is_the_states(const struct attachment *attachment) {
    struct stat status;
    if (stat(attachment->shared_path, &status) == 0 && status.st_ino == attachment->state->shared_folder) {
        return true;
    }
    message("%s is not the folder that belongs to the state file: mount it beside the file", attachment->shared_path);
    return false;
}

/* Named only when it is locked, so that nobody takes it for one that its holders left. */
static int make_file(const struct attachment *attachment, const struct shared *shared) {
    char unnamed[PATH_MAX], path[PATH_MAX];
    if (!folder_is_the_states(attachment) || !path_of(attachment, ".new-", shared, unnamed) ||
        !path_of(attachment, "", shared, path)) {
        return -1;
    }
    int fd = open(unnamed, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        message("cannot make %s: %s", unnamed, strerror(errno));
        return -1;
    }
    fchmod(fd, 0666);
    if (ftruncate(fd, (off_t)shared->bytes) != 0 || !description_lock(fd, F_RDLCK) || rename(unnamed, path) != 0) {
        message("cannot make %s: %s", path, strerror(errno));
        unlink(unnamed);
        close(fd);
        return -1;
    }
    atomic_store(&attachment->state->shared_ever, 1);
    return fd;
}

int shared_convert(const struct attachment *attachment, int device, uint64_t bytes, struct shared *shared) {
    static _Atomic uint32_t made;
    struct state *state = attachment->state;
    uint64_t number = atomic_fetch_add(&made, 1) + 1;
    *shared = (struct shared){
        .id = (uint64_t)attachment->slot << 48 | ((uint64_t)(uint32_t)getpid() & 0xffffff) << 24 | (number & 0xffffff),
        .device = device,
        .bytes = bytes};
    int fd = make_file(attachment, shared);
    if (fd >= 0) { /* counted twice for an instant, never not at all */
        atomic_fetch_add(&state->shared[device][attachment->slot], bytes);
        atomic_fetch_sub(&state->held[device][attachment->slot], bytes);
    }
    return fd;
}

void shared_return(const struct attachment *attachment, int device, uint64_t bytes) {
    struct state *state = attachment->state;
    atomic_fetch_add(&state->held[device][attachment->slot], bytes);
    atomic_fetch_sub(&state->shared[device][attachment->slot], bytes);
}

int shared_make(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes,
                struct shared *shared) {
    if (!state_take(attachment, device, kind, bytes)) {
        return -1;
    }
    int fd = shared_convert(attachment, device, bytes, shared);
    if (fd < 0) {
        state_give(attachment, device, kind, bytes);
    }
    return fd;
}

void shared_disown(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes) {
    struct state *state = attachment->state;
    atomic_fetch_sub(&state->slot[attachment->slot].device[device].by_kind[kind], bytes);
    atomic_fetch_sub(&state->shared[device][attachment->slot], bytes);
}

int shared_open(const struct attachment *attachment, const struct shared *shared) {
    char path[PATH_MAX];
    int fd = path_of(attachment, "", shared, path) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && (!is_held(fd) || !description_lock(fd, F_RDLCK))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool shared_identify(const struct attachment *attachment, int fd, struct shared *shared) {
    struct stat wanted, status;
    DIR *folder = fstat(fd, &wanted) == 0 ? opendir(attachment->shared_path) : NULL;
    bool found = false;
    for (struct dirent *entry; folder != NULL && !found && (entry = readdir(folder)) != NULL;) {
        found = entry->d_ino == wanted.st_ino && parse_name(entry->d_name, shared) &&
                fstatat(dirfd(folder), entry->d_name, &status, 0) == 0 && status.st_dev == wanted.st_dev;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

uint64_t shared_used(const struct attachment *attachment, int device) {
    if (atomic_load(&attachment->state->shared_ever) == 0) {
        return 0;
    }
    uint64_t sum = 0;
    DIR *folder = opendir(attachment->shared_path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        struct shared shared;
        if (!parse_name(entry->d_name, &shared) || shared.device != device) {
            continue;
        }
        int fd = openat(dirfd(folder), entry->d_name, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && is_held(fd)) {
            sum += shared.bytes;
        } else if (fd >= 0) {
            unlinkat(dirfd(folder), entry->d_name, 0); /* its last holder is gone */
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return sum;
}
