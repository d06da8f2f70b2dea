/* What can be asked of a context, and settings of it that cost nothing. NULL stands for the current one. */
#include "driver.h"
#include "pool.h"
#include "queue.h"
#include "stream.h"

enum { VALID_FLAGS = 0xff };

static CUresult named_as(const char *call, CUcontext handle, struct CUctx_st **context) {
    if (handle == NULL) {
        return context_enter_as(call, context, SAFE);
    }
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *context = context_of(handle);
    return *context != NULL ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_CONTEXT);
}

static CUresult check_as(const char *call, const void *out, CUcontext handle, struct CUctx_st **context) {
    CUresult result = named_as(call, handle, context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

#define check(out, handle, context) check_as(__func__, out, handle, context)

CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext handle) {
    struct CUctx_st *context;
    CUresult result = check(dev, handle, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *dev = device_ordinal(context->device);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *dev) { return cuCtxGetDevice_v2(dev, NULL); }

CUresult cuCtxGetFlags(unsigned int *flags) {
    struct CUctx_st *context;
    CUresult result = check(flags, NULL, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *flags = context->flags;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)VALID_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    context->flags = flags;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    struct CUctx_st *context;
    CUresult result = check(id, handle, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *id = context->id;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    struct CUctx_st *context;
    CUresult result = check(version, handle, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *version = context->api_version;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (least != NULL) {
        *least = LEAST_PRIORITY;
    }
    if (greatest != NULL) {
        *greatest = GREATEST_PRIORITY;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    struct CUctx_st *context;
    CUresult result = check(config, NULL, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return driver_leave(CUDA_SUCCESS);
}

/* A preference, which this device does not follow. */
CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = config <= CU_FUNC_CACHE_PREFER_EQUAL;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    struct CUctx_st *context;
    CUresult result = check(config, NULL, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxResetPersistingL2Cache(void) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    return result != CUDA_SUCCESS ? result : driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type) {
    struct CUctx_st *context;
    CUresult result = check(affinity, NULL, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) {
        return driver_leave(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    affinity->type = type;
    affinity->param.smCount.val = context->device->config.sm_count;
    return driver_leave(CUDA_SUCCESS);
}

/* Waiting for the device also lets its pools shrink. */
CUresult cuCtxSynchronize_v2(CUcontext handle) {
    struct CUctx_st *context;
    CUresult result = named_as(__func__, handle, &context);
    if (result == CUDA_SUCCESS && (result = capture_forbids_unsafe_call()) != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device = context->device;
    result = queue_wait_device(device);
    pools_shrink(device);
    return driver_leave(result);
}

CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
