/* The first ABI: addresses and sizes of 32 bits. Its memory lies below 4 GiB. */
#include "low.h"

#include "address.h"
#include "copy.h"
#include "driver.h"
#include "memory.h"
#include "stream.h"

#include <sys/mman.h>

static size_t whole_units(size_t bytes) { return (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT; }

void low_free(struct range *range) {
    size_t bytes = whole_units(range->bytes);
    munmap((void *)range->start, bytes);
    device_note_requested(range->device, -(int64_t)range->bytes);
    device_give(range->device, MEMORY_LINEAR, bytes);
    range_remove(range);
}

/* Pages below 4 GiB, MAP_FAILED without: machines other than x86 have no flag for them. */
static void *map_low(size_t bytes) {
    static const uintptr_t first = 1u << 28, limit = UINT32_MAX, step = 1u << 24;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (uintptr_t wanted = first; bytes <= limit && wanted <= limit - bytes; wanted += step) {
        void *pages = mmap((void *)wanted, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (pages == MAP_FAILED || (uintptr_t)pages + bytes <= limit) {
            return pages;
        }
        munmap(pages, bytes);
    }
    return MAP_FAILED;
}

static CUresult allocate_as(const char *call, CUdeviceptr_v1 *address, size_t bytes) {
    struct CUctx_st *context;
    CUresult result = context_enter_as(call, &context, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct device *device = context->device;
    size_t whole = whole_units(bytes);
    if (!device_take(device, MEMORY_LINEAR, whole)) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    void *pages = map_low(whole);
    struct range *range = pages == MAP_FAILED ? NULL
                                              : range_add((struct range){.start = (uintptr_t)pages,
                                                                         .bytes = bytes,
                                                                         .kind = RANGE_LOW,
                                                                         .device = device,
                                                                         .context = context,
                                                                         .reachable = true,
                                                                         .writable = true});
    if (range == NULL) {
        if (pages != MAP_FAILED) {
            munmap(pages, whole);
        }
        device_give(device, MEMORY_LINEAR, whole);
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    device_note_requested(device, (int64_t)bytes);
    *address = (CUdeviceptr_v1)range->start;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes) { return allocate_as(__func__, address, bytes); }

CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    enum { ALIGNMENT = 512 };
    if (pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t row = ((size_t)width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    CUresult result = allocate_as(__func__, address, row * height);
    if (result == CUDA_SUCCESS) {
        *pitch = (unsigned)row;
    }
    return result;
}

CUresult cuMemFree(CUdeviceptr_v1 address) { return cuMemFree_v2(address); }

/* Sizes stop at the largest that 32 bits can say. */
static unsigned clamp(size_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes; }

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
    size_t free_now = 0, total = 0;
    CUresult result = cuMemGetInfo_v2(&free_now, &total);
    if (result == CUDA_SUCCESS && free_bytes != NULL) {
        *free_bytes = clamp(free_now);
    }
    if (result == CUDA_SUCCESS && total_bytes != NULL) {
        *total_bytes = clamp(total);
    }
    return result;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 address) {
    CUdeviceptr start = 0;
    size_t length = 0;
    CUresult result = cuMemGetAddressRange_v2(&start, &length, address);
    if (result == CUDA_SUCCESS && base != NULL) {
        *base = (CUdeviceptr_v1)start;
    }
    if (result == CUDA_SUCCESS && bytes != NULL) {
        *bytes = clamp(length);
    }
    return result;
}

CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int bytes) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int bytes) { return cuMemcpyDtoH_v2(to, from, bytes); }
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes) {
    return cuMemcpyDtoD_v2(to, from, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned int count) {
    return cuMemsetD8_v2(to, value, count);
}
CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned int count) {
    return cuMemsetD16_v2(to, value, count);
}
CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned int value, unsigned int count) {
    return cuMemsetD32_v2(to, value, count);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape) {
    if (shape == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY_DESCRIPTOR wide = {shape->Width, shape->Height, shape->Format, shape->NumChannels};
    return cuArrayCreate_v2(array, &wide);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape) {
    if (shape == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR wide = {shape->Width,  shape->Height,      shape->Depth,
                                    shape->Format, shape->NumChannels, shape->Flags};
    return cuArray3DCreate_v2(array, &wide);
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *shape, CUarray array) {
    CUDA_ARRAY_DESCRIPTOR wide;
    CUresult result = shape == NULL ? CUDA_ERROR_INVALID_VALUE : cuArrayGetDescriptor_v2(&wide, array);
    if (result == CUDA_SUCCESS) {
        *shape = (CUDA_ARRAY_DESCRIPTOR_v1){clamp(wide.Width), clamp(wide.Height), wide.Format, wide.NumChannels};
    }
    return result;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *shape, CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR wide;
    CUresult result = shape == NULL ? CUDA_ERROR_INVALID_VALUE : cuArray3DGetDescriptor_v2(&wide, array);
    if (result == CUDA_SUCCESS) {
        *shape = (CUDA_ARRAY3D_DESCRIPTOR_v1){clamp(wide.Width), clamp(wide.Height), clamp(wide.Depth),
                                              wide.Format,       wide.NumChannels,   wide.Flags};
    }
    return result;
}

CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *link) {
    return cuLinkCreate_v2(count, options, values, link);
}

CUresult cuLinkAddData(CUlinkState link, CUjitInputType type, void *data, size_t bytes, const char *name,
                       unsigned int count, CUjit_option *options, void **values) {
    return cuLinkAddData_v2(link, type, data, bytes, name, count, options, values);
}
