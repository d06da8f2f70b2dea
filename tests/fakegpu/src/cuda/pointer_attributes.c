/* What a pointer points to. */
#include "address.h"
#include "driver.h"

static bool is_host(const struct address *found) {
    return found->range != NULL && (found->range->kind == RANGE_HOST || found->range->kind == RANGE_REGISTERED);
}

static CUresult read(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct address found;
    if (!address_find((uintptr_t)pointer, &found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool managed = found.range != NULL && found.range->kind == RANGE_MANAGED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = found.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = is_host(&found) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = (void *)(uintptr_t)pointer;
        return is_host(&found) || managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)value = found.start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = managed;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
        const struct device *device = found.device != NULL      ? found.device
                                      : found.context != NULL ? found.context->device
                                                                : NULL;
        *(int *)value = device != NULL ? device_ordinal(device) : -2; /* no device: the driver's word for invalid */
        return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = found.start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = found.bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)value = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = found.arena != NULL && found.arena->kind == ARENA_POOL ? found.arena->owner : NULL;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(value == NULL ? CUDA_ERROR_INVALID_VALUE : read(value, attribute, pointer));
}

/* Pageable host memory is no error here: each attribute answers with its nothing. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr pointer) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (attributes == NULL || values == NULL || count == 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned i = 0; i < count; i++) {
        if (read(values[i], attributes[i], pointer) == CUDA_SUCCESS) {
            continue;
        }
        bool small = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            *(int *)values[i] = -2;
        } else if (small) {
            *(unsigned *)values[i] = 0;
        } else {
            *(void **)values[i] = NULL;
        }
    }
    return driver_leave(CUDA_SUCCESS);
}
