#define _GNU_SOURCE
#include "identity.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "file_status.h"

static uint64_t start_time_of(const char *stat_path)
{
    char text[1024];
    int file = open(stat_path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof(text) - 1);
    close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* The name, field 2, may hold spaces and parentheses: count from the last one. */
    const char *field = strrchr(text, ')');
    for (int number = 2; field && number < 22; number++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

struct identity identity_of_self(void)
{
    struct identity self = {.pid = (uint32_t)getpid(), .start_time = start_time_of("/proc/self/stat")};
    const void *random = (const void *)getauxval(AT_RANDOM);
    struct stat status;

    if (file_status("/proc/self/ns/pid", &status))
        self.pid_namespace = status.st_ino;
    if (random)
        memcpy(&self.image, random, sizeof(self.image));
    prctl(PR_GET_NAME, self.name);
    return self;
}

/* A line of /proc/PID/maps: address, permissions, offset, device as hexadecimal major:minor, inode, path. */
static bool line_names(const char *line, dev_t device, ino_t inode)
{
    char wanted[48];
    snprintf(wanted, sizeof(wanted), " %02x:%02x %llu ", major(device), minor(device), (unsigned long long)inode);
    return strstr(line, wanted) != NULL;
}

bool pid_maps_file(uint32_t pid, dev_t device, ino_t inode, bool *known)
{
    enum { LINE_BYTES = 512 };
    char path[32], text[4096 + LINE_BYTES + 1];
    size_t kept = 0;
    ssize_t added;
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%u/maps", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    *known = file >= 0;
    while (file >= 0 && !found && (added = read(file, text + kept, 4096)) > 0) {
        text[kept + (size_t)added] = '\0';
        found = line_names(text, device, inode);
        /* What may be the first half of a line is searched again with the next piece. */
        size_t length = kept + (size_t)added;
        kept = length < LINE_BYTES ? length : LINE_BYTES;
        memmove(text, text + length - kept, kept);
    }
    if (file >= 0)
        close(file);
    return found;
}

bool process_maps_file(uint32_t pid, uint64_t start_time, dev_t device, ino_t inode)
{
    char path[32];
    bool known;
    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    return start_time != 0 && start_time_of(path) == start_time && pid_maps_file(pid, device, inode, &known);
}
