/* The primary context of a device: one a process, shared by all who retain it. */
#include "driver.h"

enum { VALID_FLAGS = 0xff, API_VERSION = 3020 };

CUresult primary_retain(struct device *device, struct CUctx_st **context) {
    if (!device->primary.live) {
        CUresult result = context_open(&device->primary, device, device->primary_flags, API_VERSION);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    device->primary_retained++;
    *context = &device->primary;
    return CUDA_SUCCESS;
}

CUresult primary_release(struct device *device) {
    if (device->primary_retained == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--device->primary_retained == 0) {
        context_close(&device->primary);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(context == NULL ? CUDA_ERROR_INVALID_VALUE : primary_retain(device, context));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    return result != CUDA_SUCCESS ? result : driver_leave(primary_release(device));
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device->primary.live) {
        context_close(&device->primary);
    }
    device->primary_retained = 0;
    device->primary_flags = 0;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

/* An active context's flags change too, since CUDA 11. */
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)VALID_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    device->primary_flags = flags;
    device->primary.flags = flags;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool active = device->primary.live;
    driver_leave(CUDA_SUCCESS);
    return active ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || active == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = device->primary_flags;
    *active = device->primary.live;
    return driver_leave(CUDA_SUCCESS);
}
