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

/* The program's name; a thread may have one of its own. */
static void read_name(char *name, size_t bytes)
{
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, name, bytes - 1) : -1;
    if (file >= 0)
        close(file);
    if (length <= 0)
        prctl(PR_GET_NAME, name);
    else
        name[length - (name[length - 1] == '\n')] = '\0';
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
    read_name(self.name, sizeof(self.name));
    return self;
}

/* A line of /proc/PID/maps: address, permissions, offset, device as hexadecimal major:minor, inode, path. */
static bool names_file(const char *lines, struct mapped_file file)
{
    char wanted[48];
    snprintf(wanted, sizeof(wanted), " %02x:%02x %llu ", major(file.device), minor(file.device), (unsigned long long)file.inode);
    return strstr(lines, wanted) || strstr(lines, file.path);
}

bool pid_maps_file(uint32_t pid, struct mapped_file file, bool *known)
{
    enum { PIECE = 2048, KEPT = 512 };
    char path[32], text[PIECE + KEPT + 1];
    size_t kept = 0;
    ssize_t added;
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%u/maps", pid);
    int maps = open(path, O_RDONLY | O_CLOEXEC);
    *known = maps >= 0;
    while (maps >= 0 && !found && (added = read(maps, text + kept, PIECE)) > 0) {
        size_t length = kept + (size_t)added;
        text[length] = '\0';
        found = names_file(text, file);
        /* What may be the first half of a line is searched again with the next piece. */
        kept = length < KEPT ? length : KEPT;
        memmove(text, text + length - kept, kept);
    }
    if (maps >= 0)
        close(maps);
    return found;
}

bool process_maps_file(uint32_t pid, uint64_t start_time, struct mapped_file file)
{
    char path[32];
    bool known;
    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    return start_time != 0 && start_time_of(path) == start_time && pid_maps_file(pid, file, &known);
}
