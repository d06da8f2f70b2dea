#include "stream.h"

#include "pool.h"
#include "queue.h"

#include <stdlib.h>

static unsigned long long last_id;

static void destroy(void *object) {
    struct CUstream_st *stream = object;
    capture_forget_stream(stream);
    free(stream->depends_on);
    object_delete(stream);
}

struct CUstream_st *stream_new(struct CUctx_st *context, unsigned flags, int priority) {
    struct CUstream_st *stream = object_new(OBJECT_STREAM, sizeof *stream, context, destroy);
    if (stream != NULL) {
        stream->flags = flags;
        stream->priority = priority;
        stream->id = ++last_id;
    }
    return stream;
}

static CUresult legacy_stream(struct CUctx_st *context, struct CUstream_st **stream) {
    if (context->legacy_stream == NULL) {
        context->legacy_stream = stream_new(context, 0, LEAST_PRIORITY);
    }
    *stream = context->legacy_stream;
    return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult thread_stream(struct CUctx_st *context, struct CUstream_st **stream) {
    for (*stream = context->thread_streams; *stream != NULL; *stream = (*stream)->next) {
        if (pthread_equal((*stream)->thread, pthread_self())) {
            return CUDA_SUCCESS;
        }
    }
    *stream = stream_new(context, 0, LEAST_PRIORITY);
    if (*stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*stream)->thread = pthread_self();
    (*stream)->next = context->thread_streams;
    context->thread_streams = *stream;
    return CUDA_SUCCESS;
}

static bool is_default(CUstream handle) {
    return handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

CUresult stream_get(CUstream handle, struct CUstream_st **stream) {
    if (is_default(handle)) {
        struct CUctx_st *context;
        CUresult result = context_current(&context);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        return handle == CU_STREAM_PER_THREAD ? thread_stream(context, stream) : legacy_stream(context, stream);
    }
    *stream = handle;
    return object_is(handle, OBJECT_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_enter_as(const char *call, CUstream handle, struct CUstream_st **stream) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = stream_get(handle, stream);
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

static CUresult create(const char *call, CUstream *out, unsigned flags, int priority) {
    struct CUctx_st *context;
    CUresult result = context_enter_as(call, &context, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    int clamped = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority;
    struct CUstream_st *stream = stream_new(context, flags, clamped);
    if (stream == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *out = stream;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { return create(__func__, stream, flags, LEAST_PRIORITY); }

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return create(__func__, stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = is_default(handle) ? CUDA_ERROR_INVALID_VALUE : stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    destroy(stream);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

/* A capturing stream cannot be waited for, and asking spoils the capture. */
static CUresult finish_as(const char *call, CUstream handle, bool wait) {
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (stream == stream->object.context->legacy_stream && (result = capture_forbids_legacy(stream)) != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    if (!wait) {
        return driver_leave(queue_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
    }
    struct device *device = stream->object.context->device;
    result = queue_wait(stream);
    pools_shrink(device);
    return driver_leave(result);
}

CUresult cuStreamSynchronize(CUstream stream) { return finish_as(__func__, stream, true); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(per_thread(stream)); }
CUresult cuStreamQuery(CUstream stream) { return finish_as(__func__, stream, false); }
CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(per_thread(stream)); }

static CUresult check_as(const char *call, const void *out, CUstream handle, struct CUstream_st **stream) {
    CUresult result = stream_enter_as(call, handle, stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

#define check(out, handle, stream) check_as(__func__, out, handle, stream)

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    struct CUstream_st *stream;
    CUresult result = check(priority, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *priority = stream->priority;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority) {
    return cuStreamGetPriority(per_thread(stream), priority);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    struct CUstream_st *stream;
    CUresult result = check(flags, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *flags = stream->flags;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags) {
    return cuStreamGetFlags(per_thread(stream), flags);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    struct CUstream_st *stream;
    CUresult result = check(id, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *id = stream->id;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id) { return cuStreamGetId(per_thread(stream), id); }

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    struct CUstream_st *stream;
    CUresult result = check(context, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *context = stream->object.context;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) {
    return cuStreamGetCtx(per_thread(stream), context);
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    struct CUstream_st *stream;
    CUresult result = check(context, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *context = stream->object.context;
    if (green != NULL) {
        *green = stream->green;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    return cuStreamGetCtx_v2(per_thread(stream), context, green);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *dev) {
    struct CUstream_st *stream;
    CUresult result = check(dev, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *dev = device_ordinal(stream->object.context->device);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *dev) { return cuStreamGetDevice(per_thread(stream), dev); }

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green) {
    struct CUstream_st *stream;
    CUresult result = check(green, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *green = stream->green;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags > 1) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(event_wait(stream, event));
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    return cuStreamWaitEvent(per_thread(stream), event, flags);
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned int flags) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (callback == NULL || flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    result = queue_wait(stream);
    if (result != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    driver_leave(CUDA_SUCCESS);
    callback(handle, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags) {
    return cuStreamAddCallback(per_thread(stream), callback, data, flags);
}
