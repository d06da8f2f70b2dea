/* Address reservations, and allocations mapped into them. */
#include "address.h"
#include "allocation.h"

#include <stdlib.h>
#include <sys/mman.h>

struct reservation {
    struct reservation *next;
    uintptr_t start;
    size_t bytes;
};

static struct reservation *reservations;

static struct reservation *reservation_at(uintptr_t start, size_t bytes) {
    struct reservation *reservation = reservations;
    while (reservation != NULL &&
           (start < reservation->start || bytes > reservation->bytes ||
            start - reservation->start > reservation->bytes - bytes)) {
        reservation = reservation->next;
    }
    return reservation;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool aligned = (alignment & (alignment - 1)) == 0;
    if (address == NULL || bytes == 0 || bytes % ARENA_UNIT != 0 || !aligned || flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    size_t step = alignment > ARENA_UNIT ? alignment : ARENA_UNIT;
    struct reservation *reservation = malloc(sizeof *reservation);
    int hint = wanted != 0 && wanted % step == 0 ? MAP_FIXED_NOREPLACE : 0;
    enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
    void *pages = hint == 0 ? MAP_FAILED : mmap((void *)(uintptr_t)wanted, bytes, PROT_NONE, FLAGS | hint, -1, 0);
    if (pages == MAP_FAILED) {
        pages = bytes > SIZE_MAX / 4 ? MAP_FAILED : mmap(NULL, bytes + step, PROT_NONE, FLAGS, -1, 0);
        if (pages != MAP_FAILED) { /* keep the aligned part */
            uintptr_t start = ((uintptr_t)pages + step - 1) / step * step, end = (uintptr_t)pages + bytes + step;
            munmap(pages, start - (uintptr_t)pages);
            munmap((void *)(start + bytes), end - start - bytes);
            pages = (void *)start;
        }
    }
    if (reservation == NULL || pages == MAP_FAILED) {
        free(reservation);
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    madvise(pages, bytes, MADV_DONTDUMP);
    *reservation = (struct reservation){.next = reservations, .start = (uintptr_t)pages, .bytes = bytes};
    reservations = reservation;
    *address = reservation->start;
    return driver_leave(CUDA_SUCCESS);
}

static bool anything_mapped(uintptr_t start, size_t bytes) {
    struct range *range = range_from(start);
    return range != NULL && range->start < start + bytes;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct reservation **link = &reservations;
    while (*link != NULL && ((*link)->start != (uintptr_t)address || (*link)->bytes != bytes)) {
        link = &(*link)->next;
    }
    struct reservation *gone = *link;
    if (gone == NULL || anything_mapped(gone->start, bytes)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *link = gone->next;
    munmap((void *)gone->start, bytes);
    free(gone);
    return driver_leave(CUDA_SUCCESS);
}

/* Mapped without access, which cuMemSetAccess gives. */
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = allocation_of(handle);
    uintptr_t start = (uintptr_t)address;
    if (allocation == NULL || flags != 0 || offset != 0 || bytes == 0 || bytes % ARENA_UNIT != 0 ||
        start % ARENA_UNIT != 0 || bytes > allocation->bytes || reservation_at(start, bytes) == NULL ||
        anything_mapped(start, bytes)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (mmap((void *)start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, (off_t)allocation->offset) ==
        MAP_FAILED) {
        return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
    }
    struct range *range = range_add((struct range){
        .start = start, .bytes = bytes, .kind = RANGE_VIRTUAL, .device = allocation->device, .owner = allocation});
    if (range == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    allocation_use(allocation);
    return driver_leave(CUDA_SUCCESS);
}

static void unmap(struct range *range) {
    struct allocation *allocation = range->owner;
    mmap((void *)range->start, range->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    range_remove(range);
    allocation_drop_use(allocation);
}

/* Whether the interval is made of whole mappings, and nothing of it is unmapped. */
static bool whole_mappings(uintptr_t start, size_t bytes) {
    uintptr_t at = start;
    while (at < start + bytes) {
        struct range *range = range_at(at);
        if (range == NULL || range->kind != RANGE_VIRTUAL || range->start != at ||
            range->start + range->bytes > start + bytes) {
            return false;
        }
        at += range->bytes;
    }
    return bytes > 0;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    CUresult result = driver_enter_unsafe();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uintptr_t start = (uintptr_t)address;
    if (!whole_mappings(start, bytes)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (uintptr_t at = start; at < start + bytes;) {
        struct range *range = range_at(at);
        at += range->bytes;
        unmap(range);
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uintptr_t start = (uintptr_t)address;
    if (access == NULL || count == 0 || !whole_mappings(start, bytes)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUmemAccess_flags most = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (size_t i = 0; i < count; i++) {
        bool device = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        if (device && (access[i].location.id < 0 || access[i].location.id >= driver.device_count)) {
            return driver_leave(CUDA_ERROR_INVALID_DEVICE);
        }
        most = access[i].flags > most ? access[i].flags : most;
    }
    int protection = most == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
                     : most == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                             : PROT_READ | PROT_WRITE;
    for (uintptr_t at = start; at < start + bytes;) {
        struct range *range = range_at(at);
        mprotect((void *)range->start, range->bytes, protection);
        range->reachable = protection != PROT_NONE;
        range->writable = most == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        at += range->bytes;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    if (flags == NULL || location == NULL || range == NULL || range->kind != RANGE_VIRTUAL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = !range->reachable  ? CU_MEM_ACCESS_FLAGS_PROT_NONE
             : !range->writable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver_leave(CUDA_SUCCESS);
}

/* The same value as the handle that it was mapped with, and one more reference to release. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    if (handle == NULL || range == NULL || range->kind != RANGE_VIRTUAL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct allocation *allocation = range->owner;
    allocation->handles++;
    *handle = allocation->handle;
    return driver_leave(CUDA_SUCCESS);
}
