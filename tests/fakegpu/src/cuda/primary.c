/* The primary context of a device: one a process, shared by all who retain it. */
#include "driver.h"

enum { VALID_FLAGS = 0xff, API_VERSION = 3020 };

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver_lock);
    if (!device->primary.live) {
        result = context_open(&device->primary, device, device->primary_flags, API_VERSION);
    }
    if (result == CUDA_SUCCESS) {
        device->primary_retained++;
        *context = &device->primary;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    if (device->primary_retained == 0) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--device->primary_retained == 0) {
        context_close(&device->primary);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    if (device->primary.live) {
        context_close(&device->primary);
    }
    device->primary_retained = 0;
    device->primary_flags = 0;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

/* An active context's flags change too, since CUDA 11. */
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)VALID_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver_lock);
    device->primary_flags = flags;
    device->primary.flags = flags;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result == CUDA_SUCCESS && device->primary.live) {
        return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    }
    return result != CUDA_SUCCESS ? result : cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver_lock);
    *flags = device->primary_flags;
    *active = device->primary.live;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}
