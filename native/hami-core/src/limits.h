/* What this container may use: from the files in `limits/` beside the library if there are any (a managed container), else from
 * HAMi's environment. */
#ifndef LIMITS_H
#define LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "request.h"

#define LIMIT_NONE UINT64_MAX

enum { UID_BYTES = 64, PATH_BYTES = 4096 };

/* A card's memory in bytes, 0 where it is not known. NVML's figure is the one that KAI's label nvidia.com/gpu.memory is made from;
 * CUDA's is what is left of it after the driver's own share. */
struct card {
    uint64_t nvml_total;
    uint64_t cuda_total;
};

/* The files of a managed container, all of one generation. */
struct limit_files {
    struct request request;
    char uid[UID_BYTES];
    bool has_kai;       /* CUDA_DEVICE_MEMORY_LIMIT is there: KAI's hamicore plugin wrote it at bind time */
    uint64_t kai_bytes;
};

enum limits_answer {
    LIMITS_UNMANAGED, /* no `limits` beside the library */
    LIMITS_READ,
    LIMITS_INVALID, /* reason says what is wrong */
};

/* The files' texts to their meaning. kai is NULL where KAI's file is absent. */
bool limit_files_parse(struct span request, struct span uid, const struct span *kai, struct limit_files *files, char *reason);

/* Looks for `limits` beside the library in `directory` and reads it. Unmanaged only if the library's own file is there and
 * `limits` is not; everything else that goes wrong is invalid. */
enum limits_answer limit_files_read(const char *directory, const char *library, struct limit_files *files, char *reason);

/* Path of the container's region, the library being in `directory`. False: too long for the buffer. */
bool limit_files_region_path(const struct limit_files *files, const char *directory, char *path, size_t bytes);

/* Bytes that the container may use on this card, LIMIT_NONE for an exemption, never 0.
 * KAI's file counts, but not above what the request can mean on this card by KAI's own arithmetic; without it, the request. */
uint64_t limit_on_card(const struct limit_files *files, struct card card);

#endif
