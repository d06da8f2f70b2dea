/* Host memory that the driver page-locks, and what the program has it lock. It costs no device memory. */
#include "host.h"

#include "address.h"
#include "driver.h"

#include <sys/mman.h>

enum { PAGE = 4096, ALLOCATE_FLAGS = 7, REGISTER_FLAGS = 15 };

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

void host_free(struct range *range) {
    if (range->kind == RANGE_HOST) {
        munmap((void *)range->start, whole_pages(range->bytes));
    }
    range_remove(range);
}

static CUresult add(struct CUctx_st *context, enum range_kind kind, void *start, size_t bytes, unsigned flags) {
    struct range *range = range_add((struct range){.start = (uintptr_t)start,
                                                   .bytes = bytes,
                                                   .kind = kind,
                                                   .context = context,
                                                   .flags = flags,
                                                   .reachable = true,
                                                   .writable = true});
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_as(const char *call, void **address, size_t bytes, unsigned flags) {
    struct CUctx_st *context;
    CUresult result = context_enter_as(call, &context, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags & ~(unsigned)ALLOCATE_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    void *pages = bytes > SIZE_MAX / 2
                      ? MAP_FAILED
                      : mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = add(context, RANGE_HOST, pages, bytes, flags);
    if (result != CUDA_SUCCESS) {
        munmap(pages, whole_pages(bytes));
        return driver_leave(result);
    }
    *address = pages;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
    return allocate_as(__func__, address, bytes, flags);
}

CUresult cuMemAllocHost_v2(void **address, size_t bytes) { return allocate_as(__func__, address, bytes, 0); }

CUresult cuMemAllocHost(void **address, unsigned int bytes) { return allocate_as(__func__, address, bytes, 0); }

static struct range *host_range(const void *address, enum range_kind kind) {
    struct range *range = range_at((uintptr_t)address);
    return range != NULL && range->kind == kind && range->start == (uintptr_t)address ? range : NULL;
}

CUresult cuMemFreeHost(void *address) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = host_range(address, RANGE_HOST);
    if (range == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    host_free(range);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags & ~(unsigned)REGISTER_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct range *next = range_from((uintptr_t)address);
    if (next != NULL && next->start < (uintptr_t)address + bytes) {
        return driver_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    return driver_leave(add(context, RANGE_REGISTERED, address, bytes, flags));
}

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned int flags) {
    return cuMemHostRegister_v2(address, bytes, flags);
}

CUresult cuMemHostUnregister(void *address) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = host_range(address, RANGE_REGISTERED);
    if (range == NULL) {
        return driver_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    host_free(range);
    return driver_leave(CUDA_SUCCESS);
}

static struct range *around(const void *address) {
    struct range *range = range_at((uintptr_t)address);
    return range != NULL && (range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED) ? range : NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == NULL || flags != 0 || around(address) == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *device = (CUdeviceptr)(uintptr_t)address;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *address) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range *range = around(address);
    if (flags == NULL || range == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = range->flags;
    return driver_leave(CUDA_SUCCESS);
}
