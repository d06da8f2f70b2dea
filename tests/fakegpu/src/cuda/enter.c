#include "../common/faults.h"
#include "capture.h"
#include "driver.h"

CUresult driver_enter_as(const char *call, enum safety safety) {
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        result = (CUresult)fault_of(call);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    if (safety == UNSAFE && (result = capture_forbids_unsafe_call()) != CUDA_SUCCESS) {
        pthread_mutex_unlock(&driver_lock);
    }
    return result;
}

CUresult driver_leave(CUresult result) {
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult context_enter_as(const char *call, struct CUctx_st **context, enum safety safety) {
    CUresult result = driver_enter_as(call, safety);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = context_current(context);
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

CUresult device_enter_as(const char *call, CUdevice ordinal, struct device **device) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (ordinal < 0 || ordinal >= driver.device_count) {
        return driver_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    *device = &driver.device[ordinal];
    return CUDA_SUCCESS;
}
