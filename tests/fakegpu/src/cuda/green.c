
#include "driver.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

struct CUdevResourceDesc_st {
    struct object object;
    unsigned multiprocessors;
};

struct CUgreenCtx_st {
    struct object object;
    struct CUctx_st *primary, *view;
    unsigned multiprocessors;
    unsigned long long id;
};

enum { CU_GREEN_CTX_DEFAULT_STREAM = 1, GROUP_MULTIPROCESSORS = 2 };

static CUdevResource resource_of(unsigned multiprocessors) {
    CUdevResource resource;
    memset(&resource, 0, sizeof resource);
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm.smCount = multiprocessors;
    resource.sm.minSmPartitionSize = resource.sm.smCoscheduledAlignment = GROUP_MULTIPROCESSORS;
    return resource;
}

static CUresult give_resource(CUdevResource *out, CUdevResourceType type, unsigned multiprocessors) {
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    *out = resource_of(multiprocessors);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *resource, CUdevResourceType type) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    return result != CUDA_SUCCESS ? result : driver_leave(give_resource(resource, type, device->config.sm_count));
}

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct CUctx_st *real = context_of(context);
    if (real == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    return driver_leave(give_resource(resource, type, real->device->config.sm_count));
}

static CUresult green_enter_as(const char *call, CUgreenCtx green) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return object_is(green, OBJECT_GREEN_CONTEXT) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type) {
    CUresult result = green_enter_as(__func__, green);
    return result != CUDA_SUCCESS ? result : driver_leave(give_resource(resource, type, green->multiprocessors));
}

/* Groups of at least so many multiprocessors each; how many there are without a place to put them. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned int flags, unsigned int least) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == NULL || input == NULL || input->type != CU_DEV_RESOURCE_TYPE_SM || flags > 3) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    unsigned each = least < GROUP_MULTIPROCESSORS
                        ? GROUP_MULTIPROCESSORS
                        : (least + GROUP_MULTIPROCESSORS - 1) / GROUP_MULTIPROCESSORS * GROUP_MULTIPROCESSORS;
    unsigned possible = input->sm.smCount / each;
    if (possible == 0) {
        return driver_leave(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    unsigned made = groups != NULL && *count < possible ? *count : possible;
    for (unsigned i = 0; groups != NULL && i < made; i++) {
        groups[i] = resource_of(each);
    }
    if (remaining != NULL && groups != NULL) {
        *remaining = resource_of(input->sm.smCount - made * each);
    }
    *count = made;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    unsigned sum = 0;
    for (unsigned i = 0; resources != NULL && i < count; i++) {
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) {
            return driver_leave(CUDA_ERROR_INVALID_RESOURCE_TYPE);
        }
        sum += resources[i].sm.smCount;
    }
    CUdevResourceDesc description = out == NULL || sum == 0
                                        ? NULL
                                        : object_new(OBJECT_RESOURCE_DESCRIPTION, sizeof *description, NULL, NULL);
    if (description == NULL) {
        return driver_leave(out == NULL || sum == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY);
    }
    description->multiprocessors = sum;
    *out = description;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice dev, unsigned int flags) {
    static unsigned long long last_id;
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || !object_is(description, OBJECT_RESOURCE_DESCRIPTION) || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (description->multiprocessors > device->config.sm_count) {
        return driver_leave(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    CUgreenCtx green = object_new(OBJECT_GREEN_CONTEXT, sizeof *green, NULL, NULL);
    result = green == NULL ? CUDA_ERROR_OUT_OF_MEMORY : primary_retain(device, &green->primary);
    if (result == CUDA_SUCCESS && (green->view = context_view(green->primary)) == NULL) {
        primary_release(device);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        if (green != NULL) {
            object_delete(green);
        }
        return driver_leave(result);
    }
    green->multiprocessors = description->multiprocessors;
    green->id = ++last_id;
    *out = green;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct device *device = green->primary->device;
    context_view_end(green->view);
    object_delete(green);
    return driver_leave(primary_release(device));
}

/* The primary context under another name, with all that is in it. */
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *context = green->view;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (id == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *id = green->id;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || flags != CU_STREAM_NON_BLOCKING) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct CUstream_st *stream = stream_new(green->primary, flags, priority);
    if (stream == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    stream->green = green;
    *out = stream;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(event, OBJECT_EVENT)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    struct CUstream_st *stream = green->primary->legacy_stream;
    if (stream == NULL && (stream = green->primary->legacy_stream = stream_new(green->primary, 0, 0)) == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    event_mark(event, stream);
    return driver_leave(CUDA_SUCCESS);
}

/* Streams that wait for the whole green context are not modelled: each waits for the event itself. */
CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    CUresult result = green_enter_as(__func__, green);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(object_is(event, OBJECT_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}
