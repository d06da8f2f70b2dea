/* stat and fstat by system call: the C library's own have other names before glibc 2.33. */
#ifndef FILE_STATUS_H
#define FILE_STATUS_H

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* False with errno. Follows links. */
static inline bool file_status(const char *path, struct stat *status)
{
    return syscall(SYS_newfstatat, AT_FDCWD, path, status, 0) == 0;
}

static inline bool descriptor_status(int file, struct stat *status)
{
    return syscall(SYS_fstat, file, status) == 0;
}

#endif
