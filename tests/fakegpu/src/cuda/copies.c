/* Copies and fills: device memory is real memory of this process, so they move real data. */
#include "driver.h"

#include <string.h>

enum direction { FROM_HOST, TO_HOST, BETWEEN };

static CUresult copy(enum direction direction, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || bytes == 0) {
        return result;
    }
    void *target = (void *)(uintptr_t)to, *source = (void *)(uintptr_t)from;
    pthread_mutex_lock(&driver_lock);
    if (direction != TO_HOST) {
        result = memory_at(to, bytes, true, &target);
    }
    if (result == CUDA_SUCCESS && direction != FROM_HOST) {
        result = memory_at(from, bytes, false, &source);
    }
    if (result == CUDA_SUCCESS && (target == NULL || source == NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        memmove(target, source, bytes);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(FROM_HOST, to, (CUdeviceptr)(uintptr_t)from, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(TO_HOST, (CUdeviceptr)(uintptr_t)to, from, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy(BETWEEN, to, from, bytes); }

/* Each side may be host or device memory: one address space. */
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    void *host;
    pthread_mutex_lock(&driver_lock);
    bool device_target = memory_at(to, 0, false, &host) == CUDA_SUCCESS;
    bool device_source = memory_at(from, 0, false, &host) == CUDA_SUCCESS;
    pthread_mutex_unlock(&driver_lock);
    if (!device_target && !device_source) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return copy(!device_source ? FROM_HOST : !device_target ? TO_HOST : BETWEEN, to, from, bytes);
}

static CUresult fill(CUdeviceptr to, const void *value, size_t width, size_t count) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || count == 0) {
        return result;
    }
    if (to % width != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *target;
    pthread_mutex_lock(&driver_lock);
    result = memory_at(to, width * count, true, (void **)&target);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
        memcpy(target + i * width, value, width);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, &value, 1, count); }
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill(to, &value, 2, count); }
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) { return fill(to, &value, 4, count); }

/* The variants for a per-thread default stream wait for another stream, and all of them are synchronous here. */
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) { return cuMemcpyDtoH_v2(to, from, bytes); }
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoD_v2(to, from, bytes);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return cuMemcpy(to, from, bytes); }
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
    return cuMemsetD8_v2(to, value, count);
}
CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
    return cuMemsetD16_v2(to, value, count);
}
CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t count) {
    return cuMemsetD32_v2(to, value, count);
}
