#include "managed.h"

#include "driver.h"
#include "ranges.h"
#include "stream.h"

#include <sys/mman.h>

enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2, PAGE = 65536 };

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

void managed_move_in(struct range *range) {
    uint64_t bytes = whole_pages(range->bytes);
    if (range->resident_bytes == 0 && device_take(range->device, MEMORY_MANAGED, bytes)) {
        range->resident_bytes = bytes;
    }
}

static void move_out(struct range *range) {
    if (range->resident_bytes != 0) {
        device_give(range->device, MEMORY_MANAGED, range->resident_bytes);
        range->resident_bytes = 0;
    }
}

void managed_free(struct range *range) {
    move_out(range);
    munmap((void *)range->start, whole_pages(range->bytes));
    range_remove(range);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    void *pages = bytes > SIZE_MAX / 2 ? MAP_FAILED
                                       : mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    struct range *range = range_add((struct range){.start = (uintptr_t)pages,
                                                   .bytes = bytes,
                                                   .kind = RANGE_MANAGED,
                                                   .device = context->device,
                                                   .context = context,
                                                   .flags = flags,
                                                   .reachable = true,
                                                   .writable = true});
    if (range == NULL) {
        munmap(pages, whole_pages(bytes));
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *address = (CUdeviceptr)range->start;
    return driver_leave(CUDA_SUCCESS);
}

/* Moves every managed range of the interval; the host is any location but a device. */
static CUresult prefetch(CUdeviceptr address, size_t bytes, bool to_device, int device, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    if (range == NULL || range->kind != RANGE_MANAGED || bytes == 0 ||
        bytes > range->bytes - (size_t)(address - range->start)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (to_device && (device < 0 || device >= driver.device_count)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (to_device && range->device != &driver.device[device]) {
        move_out(range);
        range->device = &driver.device[device];
    }
    if (to_device) {
        managed_move_in(range);
    } else {
        move_out(range);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(prefetch(address, bytes, device != -1, device, stream));
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync(address, bytes, device, per_thread(stream));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0 || location.type == CU_MEM_LOCATION_TYPE_INVALID) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    bool to_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return driver_leave(prefetch(address, bytes, to_device, location.id, stream));
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                                    CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, location, flags, per_thread(stream));
}

/* Advice changes nothing here. */
static CUresult advise(const char *call, CUdeviceptr address, size_t bytes, CUmem_advise advice) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    bool good = range != NULL && range->kind == RANGE_MANAGED && bytes != 0 && advice >= CU_MEM_ADVISE_SET_READ_MOSTLY &&
                advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    (void)device;
    return advise(__func__, address, bytes, advice);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
    (void)location;
    return advise(__func__, address, bytes, advice);
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t bytes, unsigned int flags) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = range_at((uintptr_t)address);
    bool good = range != NULL && range->kind == RANGE_MANAGED && (bytes == 0 || bytes == range->bytes) && flags != 0;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {
    return cuStreamAttachMemAsync(per_thread(stream), address, bytes, flags);
}
