/* Regions that somebody has written into: pieces of the input are put anywhere into a region that was right, and then a process attaches,
 * charges, gives back and looks. It may be refused; it may not crash, hang or write elsewhere. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../src/ledger.h"
#include "../../src/own_processes.h"
#include "../../src/slot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_files(void)
{
    char lock[64];
    snprintf(lock, sizeof(lock), "%.*s.lock", (int)strlen(path) - 6, path);
    unlink(path);
    unlink(lock);
    *strrchr(lock, '/') = '\0';
    rmdir(lock);
}

static struct region_file *open_raw(struct region *region)
{
    static struct region_file *mapped;
    char reason[REASON_BYTES];
    if (!mapped) {
        char directory[] = "/dev/shm/libvgpu-fuzz-XXXXXX";
        if (!mkdtemp(directory))
            abort();
        snprintf(path, sizeof(path), "%s/usage.cache", directory);
        atexit(remove_files);
        if (!region_open(region, path, true, reason))
            abort();
        mapped = region->file;
        region->file = NULL;
    }
    return mapped;
}

/* Two bytes of length, four of offset, then the piece. */
static void scribble(unsigned char *file, const uint8_t *data, size_t size)
{
    while (size > 6) {
        size_t length = (size_t)(data[0] | data[1] << 8) % 512;
        size_t at = ((size_t)data[2] | (size_t)data[3] << 8 | (size_t)data[4] << 16 | (size_t)data[5] << 24) % sizeof(struct region_file);
        data += 6;
        size -= 6;
        if (length > size)
            length = size;
        if (length > sizeof(struct region_file) - at)
            length = sizeof(struct region_file) - at;
        memcpy(file + at, data, length);
        data += length;
        size -= length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct region region = REGION_INITIALIZER;
    static struct region_file *pristine;
    struct region_file *file = open_raw(&region);
    struct identity self = identity_of_self();
    struct own_process list[REGION_SLOTS];
    char reason[REASON_BYTES];
    uint64_t sum;

    if (!pristine) {
        pristine = malloc(sizeof(*pristine));
        memcpy(pristine, file, sizeof(*pristine));
    }
    memcpy(file, pristine, sizeof(*file));
    scribble((unsigned char *)file, data, size);
    if (!region_open(&region, path, true, reason))
        return 0;
    slot_reap(&region, &self);
    unsigned slot = slot_take(&region, &self, reason);
    if (slot != SLOT_NONE) {
        for (unsigned device = 0; device < REGION_DEVICES; device++) {
            if (ledger_charge(&region.file->extension, slot, device, 1000, UINT64_C(1) << 40))
                ledger_release(&region.file->extension, slot, device, 1000);
            own_processes(&(struct sight){.file = region.file}, device, list, &sum);
        }
        slot_drop(&region, slot);
    }
    munmap(region.file, sizeof(*region.file));
    region.file = NULL;
    return 0;
}
