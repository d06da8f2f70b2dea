/* Files that processes share by mapping them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What each of them begins with. */
struct mapped_header {
    uint64_t magic;
    uint32_t version, bytes;
};

/*
 * Maps the file, and makes it if it does not exist: complete under another name, its blocks allocated, filled by `fill`,
 * and linked into place, so that nobody ever sees half of one or meets a full disk later. NULL, with a line on stderr,
 * if that cannot be done or the file is of another kind or size.
 */
void *mapped_open(const char *path, struct mapped_header header, void (*fill)(void *memory, const char *path));
