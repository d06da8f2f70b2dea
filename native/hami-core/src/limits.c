#define _GNU_SOURCE
#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "file_status.h"
#include "memory_size.h"

/* The files are a few lines; threads that call us may have a small stack. */
enum { FILE_BYTES = 1024 };

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool parse_uid(struct span text, char *uid)
{
    text = span_trim(text);
    for (size_t i = 0; i < text.length; i++) {
        char c = text.start[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'))
            return false;
    }
    return text.length > 0 && span_copy(text, uid, UID_BYTES);
}

bool limit_files_parse(struct span request, struct span uid, const struct span *kai, struct limit_files *files, char *reason)
{
    char inner[REASON_BYTES];

    *files = (struct limit_files){.has_kai = kai != NULL};
    if (!request_parse(request, &files->request, inner)) {
        snprintf(reason, REASON_BYTES, "request: %.*s", REASON_BYTES - 16, inner);
        return false;
    }
    if (!parse_uid(uid, files->uid)) {
        snprintf(reason, REASON_BYTES, "uid: \"%.*s\": accepted is the pod's UID", uid.length < 64 ? (int)uid.length : 64, uid.start);
        return false;
    }
    if (kai && memory_size_parse(*kai, &files->kai_bytes) != SIZE_BYTES) {
        snprintf(reason, REASON_BYTES, "CUDA_DEVICE_MEMORY_LIMIT: \"%.*s\": accepted is %s, above 0",
                 kai->length < 64 ? (int)kai->length : 64, kai->start, SIZE_ACCEPTED);
        return false;
    }
    return true;
}

/* The first bytes of a file; -1 with errno where it cannot be read, EFBIG where it is longer. */
static ssize_t read_file(int directory, const char *name, char *buffer)
{
    ssize_t length = 0, added = 1;
    int file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return -1;
    while (length < FILE_BYTES && added > 0) {
        added = read(file, buffer + length, FILE_BYTES - (size_t)length);
        if (added > 0)
            length += added;
        else if (added < 0 && errno == EINTR)
            added = 1;
    }
    int error = added < 0 ? errno : length == FILE_BYTES ? EFBIG : 0;
    close(file);
    errno = error;
    return error ? -1 : length;
}

static bool read_all(int directory, struct limit_files *files, char *reason)
{
    char request[FILE_BYTES], uid[FILE_BYTES], kai[FILE_BYTES];
    ssize_t request_length = read_file(directory, "request", request);
    const char *unread = "request";

    if (request_length >= 0) {
        ssize_t uid_length = read_file(directory, "uid", uid);
        unread = "uid";
        if (uid_length >= 0) {
            ssize_t kai_length = read_file(directory, "CUDA_DEVICE_MEMORY_LIMIT", kai);
            unread = "CUDA_DEVICE_MEMORY_LIMIT";
            if (kai_length >= 0 || errno == ENOENT) {
                struct span kai_text = {kai, kai_length >= 0 ? (size_t)kai_length : 0};
                return limit_files_parse((struct span){request, (size_t)request_length}, (struct span){uid, (size_t)uid_length},
                                         kai_length >= 0 ? &kai_text : NULL, files, reason);
            }
        }
    }
    snprintf(reason, REASON_BYTES, "%s: %s", unread, strerror(errno));
    return false;
}

enum generation { GENERATION_GONE, GENERATION_HELD, GENERATION_NEVER };

/* A projected volume swaps the link `..data` when it changes, so one descriptor of it gives files of one generation. A directory
 * without the link is its own only generation. */
static enum generation open_generation(int limits, int *file)
{
    char target[2];
    *file = openat(limits, "..data", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*file < 0 && errno == ENOENT && readlinkat(limits, "..data", target, sizeof(target)) < 0 && errno == ENOENT)
        *file = openat(limits, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*file >= 0)
        return GENERATION_HELD;
    /* The link was read, and what it pointed to was removed before it was opened. */
    return errno == ENOENT ? GENERATION_GONE : GENERATION_NEVER;
}

/* Whether the generation that was read is still the one in force: files of one that is being removed vanish one by one. */
static bool is_current(int limits, int generation)
{
    struct stat read, now;
    int file;
    if (open_generation(limits, &file) != GENERATION_HELD)
        return false;
    bool same = descriptor_status(generation, &read) && descriptor_status(file, &now) && read.st_ino == now.st_ino &&
                read.st_dev == now.st_dev;
    close(file);
    return same;
}

/* *current: what was read, or the lack of it, is of a generation in force. */
static bool read_once(int limits, const char *path, struct limit_files *files, bool *current, char *reason)
{
    int generation;
    enum generation held = open_generation(limits, &generation);
    *current = held != GENERATION_GONE;
    if (held != GENERATION_HELD) {
        snprintf(reason, REASON_BYTES, "%.128s: %s", path, strerror(errno));
        return false;
    }
    bool read = read_all(generation, files, reason);
    *current = (read && files->has_kai) || is_current(limits, generation);
    close(generation);
    return read;
}

enum limits_answer limit_files_read(const char *directory, const char *library, struct limit_files *files, char *reason)
{
    enum { TRIES = 20, PAUSE = 500000 };
    char path[PATH_BYTES + 8];
    struct stat status;
    bool read = false, current = false;

    snprintf(path, sizeof(path), "%s/limits", directory);
    int limits = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (limits < 0) {
        int error = errno;
        if (error == ENOENT && file_status(library, &status))
            return LIMITS_UNMANAGED;
        snprintf(reason, REASON_BYTES, "%.128s: %s", error == ENOENT ? library : path, strerror(errno));
        return LIMITS_INVALID;
    }
    for (unsigned i = 0; i < TRIES && !current; i++) {
        if (i > 0)
            clock_sleep(PAUSE);
        read = read_once(limits, path, files, &current, reason);
    }
    close(limits);
    return read ? LIMITS_READ : LIMITS_INVALID;
}

bool limit_files_region_path(const struct limit_files *files, const char *directory, char *path, size_t bytes)
{
    int length = files->request.region_is_mounted
                     ? snprintf(path, bytes, "%s/containers/usage.cache", directory)
                     : snprintf(path, bytes, "%s/containers/%s_%s/usage.cache", directory, files->uid, files->request.container);
    return length >= 0 && (size_t)length < bytes;
}

/* The memory that a fraction is taken of. Without NVML, CUDA's smaller figure: a fraction of it is never more than was promised. */
static uint64_t card_memory(struct card card)
{
    return card.nvml_total ? card.nvml_total : card.cuda_total;
}

static uint64_t request_on_card(const struct request *request, struct card card)
{
    return request->kind == MEMORY_MIB ? request->memory_mib * MIB : fraction_of(request->fraction, card_memory(card));
}

/* Where only CUDA's figure is known, the most over all labels that the card may have. What the driver keeps back of a card is
 * below a sixteenth and 256 MiB (a Tesla T4 keeps 430 MiB of 15,360, an A100 430 of 40,960). Too high is harmless, since it only
 * bounds KAI's own figure; too low would cut it. For `gpu-memory` the ceiling adds up to a hundredth of the card, and flooring
 * the label up to 99 MiB to the divisor. */
static uint64_t most_without_nvml_mib(const struct request *request, uint64_t cuda_mib)
{
    uint64_t label_mib = cuda_mib + cuda_mib / 16 + 256;
    if (request->kind == MEMORY_FRACTION)
        return kai_limit_mib(kai_portion_of_fraction(request->fraction), label_mib);
    if (cuda_mib <= 99 || request->memory_mib >= label_mib)
        return label_mib;
    return smaller(label_mib, request->memory_mib * cuda_mib / (cuda_mib - 99) + label_mib / 100 + 1);
}

static uint64_t most_with_nvml_mib(const struct request *request, uint64_t label_mib)
{
    unsigned portion = request->kind == MEMORY_MIB ? kai_portion_of_memory(request->memory_mib, label_mib)
                                                   : kai_portion_of_fraction(request->fraction);
    return kai_limit_mib(portion, label_mib);
}

/* The most that KAI can have meant by this request on this card. */
static uint64_t most_by_kai(const struct request *request, struct card card)
{
    uint64_t most_mib = card.nvml_total ? most_with_nvml_mib(request, card.nvml_total / MIB)
                                        : most_without_nvml_mib(request, card.cuda_total / MIB);
    /* Portion 0.00 is an error in KAI, which then writes no limit at all. */
    return most_mib > 0 ? most_mib * MIB : request_on_card(request, card);
}

uint64_t limit_on_card(const struct limit_files *files, struct card card)
{
    const struct request *request = &files->request;
    uint64_t limit;
    if (request->kind == MEMORY_NONE)
        return LIMIT_NONE;
    if (files->has_kai)
        limit = smaller(files->kai_bytes, most_by_kai(request, card));
    else
        limit = request_on_card(request, card);
    return request->at_most_mib ? smaller(limit, request->at_most_mib * MIB) : limit;
}
