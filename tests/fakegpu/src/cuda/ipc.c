/*
 * IPC handles. Exporting a block makes its units a file that others can map; its bytes stay charged to the exporter.
 * Opening the same handle again gives the same address, and is counted.
 */
#include "ipc.h"

#include "../common/shared.h"
#include "address.h"
#include "driver.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is in a CUipcMemHandle. */
struct handle {
    uint64_t magic;
    struct shared shared;
    uint64_t offset; /* of the block in the file: a small block shares its units */
    uint64_t bytes;  /* of the block */
};

static const uint64_t MAGIC = 0x636970756761664b;

/* Units of this process that are such a file. */
struct exported {
    struct exported *next;
    struct CUctx_st *context;
    const struct arena *arena;
    uintptr_t start;
    size_t bytes;
    int fd;
    struct shared shared;
};

static struct exported *exports;

static struct exported *export_at(uintptr_t start) {
    struct exported *export = exports;
    while (export != NULL && export->start != start) {
        export = export->next;
    }
    return export;
}

/* The units become the file's, with the data that they have. */
static struct exported *export_units(const struct address *block, uintptr_t start, size_t bytes) {
    struct exported *export = malloc(sizeof *export);
    if (export == NULL) {
        return NULL;
    }
    *export = (struct exported){
        .next = exports, .context = block->context, .arena = block->arena, .start = start, .bytes = bytes};
    export->fd = shared_convert(&driver.attachment, block->device->state_index, bytes, &export->shared);
    if (export->fd < 0) {
        free(export);
        return NULL;
    }
    for (size_t done = 0; done < bytes; done += 4096) { /* pages that were never written stay holes */
        static const char zeros[4096];
        if (memcmp((void *)(start + done), zeros, sizeof zeros) != 0 &&
            pwrite(export->fd, (void *)(start + done), sizeof zeros, (off_t)done) != (ssize_t)sizeof zeros) {
            break;
        }
    }
    mmap((void *)start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, export->fd, 0);
    exports = export;
    return export;
}

static void end_export(struct exported **link) {
    struct exported *gone = *link;
    *link = gone->next;
    struct device *device = gone->arena->device;
    mmap((void *)gone->start, gone->bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    shared_return(&driver.attachment, device->state_index, gone->bytes);
    close(gone->fd);
    free(gone);
}

void memory_forget_shared(const struct address *block) {
    uintptr_t start;
    size_t bytes;
    if (exports == NULL || !arena_is_last_of_units(block->arena, block->start)) {
        return;
    }
    arena_units_of(block->arena, block->start, &start, &bytes);
    struct exported **link = &exports;
    while (*link != NULL && (*link)->start != start) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        end_export(link);
    }
}

void ipc_end(struct CUctx_st *context) {
    for (struct exported **link = &exports; *link != NULL;) {
        if ((*link)->context == context) {
            end_export(link);
        } else {
            link = &(*link)->next;
        }
    }
}

void ipc_end_arena(const struct arena *arena) {
    for (struct exported **link = &exports; *link != NULL;) {
        if ((*link)->arena == arena) {
            end_export(link);
        } else {
            link = &(*link)->next;
        }
    }
}

CUresult ipc_export(void *out, CUdeviceptr address, const struct arena *arena) {
    struct address block;
    if (!address_find((uintptr_t)address, &block) || block.arena == NULL || block.arena != arena) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t start;
    size_t bytes;
    arena_units_of(block.arena, block.start, &start, &bytes);
    struct exported *export = export_at(start);
    if (export == NULL && (export = export_units(&block, start, bytes)) == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct handle handle = {
        .magic = MAGIC, .shared = export->shared, .offset = block.start - start, .bytes = block.bytes};
    _Static_assert(sizeof handle <= IPC_HANDLE_BYTES && sizeof(CUipcMemHandle) == IPC_HANDLE_BYTES, "one size");
    memset(out, 0, IPC_HANDLE_BYTES);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct address block;
    bool linear = handle != NULL && address_find((uintptr_t)address, &block) && block.arena != NULL &&
                  block.arena->kind == ARENA_LINEAR;
    return driver_leave(linear ? ipc_export(handle, address, block.arena) : CUDA_ERROR_INVALID_VALUE);
}

struct opened {
    struct opened *next;
    struct shared shared;
    void *pages;
    int fd;
    unsigned blocks;
};

static struct opened *openings;

static struct opened *opened_of(const struct shared *shared) {
    for (struct opened *opened = openings; opened != NULL; opened = opened->next) {
        if (opened->shared.id == shared->id) {
            return opened;
        }
    }
    int fd = shared_open(&driver.attachment, shared);
    struct opened *opened = fd < 0 ? NULL : malloc(sizeof *opened);
    void *pages = opened == NULL ? MAP_FAILED
                                 : mmap(NULL, shared->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == MAP_FAILED) {
        free(opened);
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    *opened = (struct opened){.next = openings, .shared = *shared, .pages = pages, .fd = fd};
    openings = opened;
    return opened;
}

static void drop_opened(struct opened *opened) {
    if (--opened->blocks > 0) {
        return;
    }
    struct opened **link = &openings;
    while (*link != opened) {
        link = &(*link)->next;
    }
    *link = opened->next;
    munmap(opened->pages, opened->shared.bytes);
    close(opened->fd);
    free(opened);
}

CUresult ipc_open(const void *given, struct device *device, struct CUctx_st *context, CUdeviceptr *address) {
    struct handle content, *handle = &content;
    memcpy(handle, given, sizeof *handle);
    if (handle->magic != MAGIC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const struct exported *export = exports; export != NULL; export = export->next) {
        if (export->shared.id == handle->shared.id) {
            return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that it comes from */
        }
    }
    struct opened *opened = opened_of(&handle->shared);
    if (opened == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t start = (uintptr_t)opened->pages + handle->offset;
    struct range *range = range_at(start);
    if (range == NULL) {
        range = range_add((struct range){.start = start,
                                         .bytes = handle->bytes,
                                         .kind = RANGE_OPENED,
                                         .device = device,
                                         .context = context,
                                         .owner = opened,
                                         .reachable = true,
                                         .writable = true});
        opened->blocks += range != NULL;
    }
    if (range == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->uses++;
    *address = start;
    return CUDA_SUCCESS;
}

void ipc_close_once(struct range *range) {
    if (--range->uses == 0) {
        ipc_close(range);
    }
}

void ipc_close(struct range *range) {
    struct opened *opened = range->owner;
    range_remove(range);
    drop_opened(opened);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle given, unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = address != NULL && flags <= 1;
    return driver_leave(good ? ipc_open(&given, context->device, context, address) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    if (range == NULL || range->kind != RANGE_OPENED || range->start != (uintptr_t)address) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    ipc_close_once(range);
    return driver_leave(CUDA_SUCCESS);
}
