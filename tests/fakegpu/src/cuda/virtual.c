#include "virtual.h"

#include "address.h"
#include "allocation.h"
#include "array.h"
#include "stream.h"

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

void virtual_unmap(struct range *range) {
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
        virtual_unmap(range);
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

/* Pieces of arrays that were made without memory of their own. */
struct array_mapping {
    struct array_mapping *next;
    const void *array;
    CUarrayMapInfo info;
    struct allocation *allocation;
};

static struct array_mapping *array_mappings;

static void drop_array_mapping(struct array_mapping **link) {
    struct array_mapping *gone = *link;
    *link = gone->next;
    allocation_drop_use(gone->allocation);
    free(gone);
}

void virtual_forget_array(const void *array) {
    for (struct array_mapping **link = &array_mappings; *link != NULL;) {
        if ((*link)->array == array) {
            drop_array_mapping(link);
        } else {
            link = &(*link)->next;
        }
    }
}

static bool same_piece(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
    if (a->subresourceType != b->subresourceType) {
        return false;
    }
    if (a->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        return a->subresource.miptail.layer == b->subresource.miptail.layer &&
               a->subresource.miptail.offset == b->subresource.miptail.offset;
    }
    return a->subresource.sparseLevel.level == b->subresource.sparseLevel.level &&
           a->subresource.sparseLevel.layer == b->subresource.sparseLevel.layer &&
           a->subresource.sparseLevel.offsetX == b->subresource.sparseLevel.offsetX &&
           a->subresource.sparseLevel.offsetY == b->subresource.sparseLevel.offsetY &&
           a->subresource.sparseLevel.offsetZ == b->subresource.sparseLevel.offsetZ;
}

static CUresult map_piece(const CUarrayMapInfo *info) {
    bool mipmap = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    const void *array = mipmap ? (const void *)info->resource.mipmap : (const void *)info->resource.array;
    if (!object_is(array, mipmap ? OBJECT_MIPMAP : OBJECT_ARRAY)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct array_mapping **link = &array_mappings;
    while (*link != NULL && ((*link)->array != array || !same_piece(&(*link)->info, info))) {
        link = &(*link)->next;
    }
    if (*link != NULL) { /* mapping again replaces */
        drop_array_mapping(link);
    }
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
        return CUDA_SUCCESS;
    }
    struct allocation *allocation = allocation_of(info->memHandle.memHandle);
    struct array_mapping *mapping = allocation == NULL ? NULL : malloc(sizeof *mapping);
    if (mapping == NULL) {
        return allocation == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *mapping = (struct array_mapping){
        .next = array_mappings, .array = array, .info = *info, .allocation = allocation};
    array_mappings = mapping;
    allocation_use(allocation);
    return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned int count, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (infos == NULL || count == 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = map_piece(&infos[i]);
    }
    return driver_leave(result);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *infos, unsigned int count, CUstream stream) {
    return cuMemMapArrayAsync(infos, count, per_thread(stream));
}
