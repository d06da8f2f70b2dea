/* Multicast objects: memory of several devices under one address. They cost no memory, and hold what is bound to them. */
#include "multicast.h"

#include "allocation.h"
#include "ranges.h"

#include <stdlib.h>

struct binding {
    struct binding *next;
    struct allocation *memory;
    struct device *device;
    size_t offset, bytes;
};

struct multicast {
    CUmulticastObjectProp prop;
    uint32_t devices; /* a bit each */
    struct binding *bindings;
};

void multicast_end(struct multicast *multicast) {
    while (multicast->bindings != NULL) {
        struct binding *gone = multicast->bindings;
        multicast->bindings = gone->next;
        allocation_drop_use(gone->memory);
        free(gone);
    }
    free(multicast);
}

static bool supported(const struct device *device) { return device->config.compute_major >= 9; }

static unsigned supporting_devices(void) {
    unsigned count = 0;
    for (int i = 0; i < driver.device_count; i++) {
        count += supported(&driver.device[i]);
    }
    return count;
}

static CUresult check_prop(const CUmulticastObjectProp *prop) {
    if (prop == NULL || prop->numDevices == 0 || prop->size == 0 || prop->size % ARENA_UNIT != 0 || prop->flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return prop->numDevices <= supporting_devices() && prop->handleTypes == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (granularity == NULL || prop == NULL || option > CU_MULTICAST_GRANULARITY_RECOMMENDED) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *granularity = ARENA_UNIT;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
    CUresult result = driver_enter_unsafe();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = handle == NULL ? CUDA_ERROR_INVALID_VALUE : check_prop(prop);
    if (result != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    struct multicast *multicast = calloc(1, sizeof *multicast);
    struct allocation *allocation = multicast == NULL ? NULL : allocation_make_costless(prop->size);
    if (allocation == NULL) {
        free(multicast);
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    multicast->prop = *prop;
    allocation->multicast = multicast;
    *handle = allocation->handle;
    return driver_leave(CUDA_SUCCESS);
}

static struct multicast *multicast_of(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = allocation_of(handle);
    return allocation != NULL ? allocation->multicast : NULL;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct multicast *multicast = multicast_of(handle);
    if (multicast == NULL || (multicast->devices & 1u << dev) != 0 ||
        (unsigned)__builtin_popcount(multicast->devices) == multicast->prop.numDevices) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!supported(device)) {
        return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    multicast->devices |= 1u << dev;
    return driver_leave(CUDA_SUCCESS);
}

static CUresult bind(struct multicast *multicast, struct device *device, size_t offset, struct allocation *memory,
                     size_t memory_offset, size_t bytes) {
    if (multicast == NULL || memory == NULL || memory->device == NULL || bytes == 0 || offset % ARENA_UNIT != 0 ||
        bytes % ARENA_UNIT != 0 || offset + bytes > multicast->prop.size || memory_offset + bytes > memory->bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((unsigned)__builtin_popcount(multicast->devices) != multicast->prop.numDevices) {
        return CUDA_ERROR_ILLEGAL_STATE; /* until every device was added */
    }
    device = device != NULL ? device : memory->device;
    if ((multicast->devices & 1u << device_ordinal(device)) == 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (const struct binding *other = multicast->bindings; other != NULL; other = other->next) {
        if (other->device == device && offset < other->offset + other->bytes && other->offset < offset + bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct binding *binding = malloc(sizeof *binding);
    if (binding == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *binding = (struct binding){
        .next = multicast->bindings, .memory = memory, .device = device, .offset = offset, .bytes = bytes};
    multicast->bindings = binding;
    allocation_use(memory);
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t bytes, unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(bind(multicast_of(handle), NULL, offset, allocation_of(memory), memory_offset, bytes));
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                               unsigned long long flags) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(bind(multicast_of(handle), device, offset, allocation_of(memory), memory_offset, bytes));
}

static struct allocation *mapped_at(CUdeviceptr address, size_t bytes, size_t *offset) {
    struct range *range = range_at((uintptr_t)address);
    if (range == NULL || range->kind != RANGE_VIRTUAL || bytes > range->bytes - (size_t)(address - range->start)) {
        return NULL;
    }
    *offset = (size_t)(address - range->start);
    return range->owner;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address, size_t bytes,
                             unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t memory_offset = 0;
    struct allocation *memory = flags == 0 ? mapped_at(address, bytes, &memory_offset) : NULL;
    return driver_leave(bind(multicast_of(handle), NULL, offset, memory, memory_offset, bytes));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, CUdeviceptr address,
                                size_t bytes, unsigned long long flags) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    size_t memory_offset = 0;
    struct allocation *memory = flags == 0 ? mapped_at(address, bytes, &memory_offset) : NULL;
    return driver_leave(bind(multicast_of(handle), device, offset, memory, memory_offset, bytes));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t bytes) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct multicast *multicast = multicast_of(handle);
    struct binding **link = multicast == NULL ? NULL : &multicast->bindings;
    while (link != NULL && *link != NULL &&
           ((*link)->device != device || (*link)->offset != offset || (*link)->bytes != bytes)) {
        link = &(*link)->next;
    }
    if (link == NULL || *link == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct binding *gone = *link;
    *link = gone->next;
    allocation_drop_use(gone->memory);
    free(gone);
    return driver_leave(CUDA_SUCCESS);
}
