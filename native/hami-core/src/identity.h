/* Which process this is, so that its record in a region is not taken for another's. */
#ifndef IDENTITY_H
#define IDENTITY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct identity {
    uint32_t pid;
    uint64_t start_time;    /* field 22 of /proc/self/stat, 0 without /proc */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid, 0 without /proc */
    uint64_t image;         /* differs before and after exec */
    char name[16];
};

struct identity identity_of_self(void);

/* A file by its identity, and by its path for file systems that show another device in /proc (overlayfs, btrfs). */
struct mapped_file {
    dev_t device;
    ino_t inode;
    const char *path;
};

/* Whether the process of this PID and start time is there and has the file mapped. False also where /proc does not tell. */
bool process_maps_file(uint32_t pid, uint64_t start_time, struct mapped_file file);

/* The same without a start time to compare, for records that hold none. *known: /proc told. */
bool pid_maps_file(uint32_t pid, struct mapped_file file, bool *known);

#endif
