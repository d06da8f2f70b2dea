#include "mapped.h"

#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fill_file(int fd, const char *path, struct mapped_header header, void (*fill)(void *, const char *)) {
    int failure = posix_fallocate(fd, 0, header.bytes);
    if (failure != 0) {
        return failure;
    }
    struct mapped_header *memory = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return errno;
    }
    *memory = header;
    fill(memory, path);
    munmap(memory, header.bytes);
    return fchmod(fd, 0666) == 0 ? 0 : errno; /* a container's user must be able to write */
}

static bool make(const char *path, struct mapped_header header, void (*fill)(void *, const char *)) {
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    int failure = fill_file(fd, path, header, fill);
    if (failure == 0 && link(temporary, path) != 0 && errno != EEXIST) {
        failure = errno;
    }
    unlink(temporary);
    close(fd);
    errno = failure;
    return failure == 0;
}

void *mapped_open(const char *path, struct mapped_header header, void (*fill)(void *memory, const char *path)) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && make(path, header, fill)) {
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (fd < 0) {
        message("cannot open the state file %s: %s", path, strerror(errno));
        return NULL;
    }
    struct stat status;
    struct mapped_header *memory = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size == (off_t)header.bytes) {
        memory = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (memory == MAP_FAILED || memcmp(memory, &header, sizeof header) != 0) {
        message("%s is not a state file of this version of the fake GPU; remove it", path);
        return NULL;
    }
    return memory;
}
