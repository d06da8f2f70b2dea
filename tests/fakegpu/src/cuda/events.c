/* Events. One recorded in a capturing stream marks a place in the graph, and no moment in time. */
#include "queue.h"
#include "stream.h"

#include <stdlib.h>

struct CUevent_st {
    struct object object;
    unsigned flags;
    bool recorded;
    struct moment moment;
    struct device *device;
    unsigned long long capture_id; /* of the capture that it was last recorded in; 0 = none */
    CUgraphNode *nodes;
    size_t node_count;
};

enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4, VALID_FLAGS = 7 };

static void forget_nodes(struct CUevent_st *event) {
    free(event->nodes);
    event->nodes = NULL;
    event->node_count = 0;
    event->capture_id = 0;
}

static void destroy(void *object) {
    forget_nodes(object);
    object_delete(object);
}

static CUresult event_enter_as(const char *call, CUevent event, enum safety safety) {
    CUresult result = driver_enter_as(call, safety);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return object_is(event, OBJECT_EVENT) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0, timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (out == NULL || (flags & ~(unsigned)VALID_FLAGS) != 0 || (interprocess && timing)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct CUevent_st *event = object_new(OBJECT_EVENT, sizeof *event, context, destroy);
    if (event == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    event->flags = flags;
    *out = event;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = event_enter_as(__func__, event, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    destroy(event);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

static CUresult record_in_capture(struct CUstream_st *stream, CUevent event) {
    CUgraphNode *nodes = malloc((stream->depends_count + 1) * sizeof *nodes);
    if (nodes == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    forget_nodes(event);
    for (size_t i = 0; i < stream->depends_count; i++) {
        nodes[i] = stream->depends_on[i];
    }
    event->nodes = nodes;
    event->node_count = stream->depends_count;
    event->capture_id = stream->capture->id;
    return CUDA_SUCCESS;
}

void event_mark(CUevent event, struct CUstream_st *stream) {
    forget_nodes(event);
    event->recorded = true;
    event->device = stream->object.context->device;
    event->moment = queue_moment(stream);
}

static CUresult record(struct CUstream_st *stream, CUevent event, bool external) {
    if (event->object.context != stream->object.context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->capture != NULL && external) {
        CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = {.event = event}};
        return stream_do(stream, &node);
    }
    if (stream->capture != NULL) {
        return record_in_capture(stream, event);
    }
    event_mark(event, stream);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags) {
    CUresult result = event_enter_as(__func__, event, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUstream_st *stream;
    result = flags > 1 ? CUDA_ERROR_INVALID_VALUE : stream_get(handle, &stream);
    return driver_leave(result != CUDA_SUCCESS ? result : record(stream, event, flags == 1));
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
    return cuEventRecordWithFlags(event, per_thread(stream), flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return cuEventRecord(event, per_thread(stream)); }

/* In a graph: the stream's next node comes after what the event marked; a stream that does not capture joins. */
CUresult event_wait(struct CUstream_st *stream, CUevent event) {
    if (!object_is(event, OBJECT_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct capture *capture = capture_by_id(event->capture_id);
    if (stream->capture == NULL && event->capture_id == 0) {
        if (event->recorded && event->device == stream->object.context->device) {
            queue_after(stream, &event->moment);
        }
        return CUDA_SUCCESS;
    }
    if (event->capture_id == 0) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture == NULL) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (stream->capture != NULL && stream->capture != capture) {
        capture_invalidate(stream->capture);
        capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    return capture_join(stream, capture, event->nodes, event->node_count);
}

static CUresult reached(CUevent event, bool wait) {
    while (event->recorded && !queue_passed(event->device, &event->moment)) {
        if (!wait) {
            return CUDA_ERROR_NOT_READY;
        }
        queue_wait_moment(event->device, &event->moment);
        if (!object_is(event, OBJECT_EVENT)) {
            return CUDA_ERROR_INVALID_HANDLE; /* destroyed meanwhile */
        }
    }
    return CUDA_SUCCESS;
}

/* An event that marks a place in a graph has not happened, and asking spoils the capture. */
static CUresult happened_as(const char *call, CUevent event, enum safety safety, bool wait) {
    CUresult result = event_enter_as(call, event, safety);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (event->capture_id == 0) {
        return driver_leave(reached(event, wait));
    }
    struct capture *capture = capture_by_id(event->capture_id);
    if (capture != NULL) {
        capture_invalidate(capture);
    }
    return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
}

CUresult cuEventQuery(CUevent event) { return happened_as(__func__, event, UNSAFE, false); }
CUresult cuEventSynchronize(CUevent event) { return happened_as(__func__, event, SAFE, true); }

static CUresult elapsed_as(const char *call, float *milliseconds, CUevent start, CUevent end) {
    CUresult result = event_enter_as(call, start, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(end, OBJECT_EVENT) || !start->recorded || !end->recorded ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (milliseconds == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (!queue_passed(start->device, &start->moment) || !queue_passed(end->device, &end->moment)) {
        return driver_leave(CUDA_ERROR_NOT_READY);
    }
    *milliseconds = (float)((double)((int64_t)(end->moment.time_ns - start->moment.time_ns)) / 1e6);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return elapsed_as(__func__, milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return elapsed_as(__func__, milliseconds, start, end);
}
