#include "capture.h"

#include "graph.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static struct capture *captures;
static unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool forbids(const struct capture *capture) {
    if (capture->invalidated || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    if (pthread_equal(capture->thread, pthread_self())) {
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    }
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* cuThreadExchangeStreamCaptureMode in NVIDIA's driver API documentation says who forbids whom. */
CUresult capture_forbids_unsafe_call(void) {
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (forbids(capture)) {
            capture->invalidated = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

void capture_invalidate(struct capture *capture) { capture->invalidated = true; }

struct capture *capture_by_id(unsigned long long id) {
    struct capture *capture = captures;
    while (capture != NULL && capture->id != id) {
        capture = capture->next;
    }
    return capture;
}

static bool holds_back_legacy(const struct capture *capture, const struct CUstream_st *legacy) {
    bool blocking = (capture->origin->flags & CU_STREAM_NON_BLOCKING) == 0;
    return !capture->invalidated && blocking && capture->origin->object.context == legacy->object.context;
}

CUresult capture_forbids_legacy(const struct CUstream_st *legacy) {
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (holds_back_legacy(capture, legacy)) {
            capture->invalidated = true;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

static void leave(struct CUstream_st *stream) {
    struct CUstream_st **link = &stream->capture->participants;
    while (*link != stream) {
        link = &(*link)->next_participant;
    }
    *link = stream->next_participant;
    stream->capture = NULL;
    stream->depends_count = 0;
}

static CUresult depend_on(struct CUstream_st *stream, CUgraphNode node) {
    for (size_t i = 0; i < stream->depends_count; i++) {
        if (stream->depends_on[i] == node) {
            return CUDA_SUCCESS;
        }
    }
    if (stream->depends_count == stream->depends_room) {
        size_t room = 2 * stream->depends_room + 4;
        CUgraphNode *grown = realloc(stream->depends_on, room * sizeof *grown);
        if (grown == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        stream->depends_on = grown;
        stream->depends_room = room;
    }
    stream->depends_on[stream->depends_count++] = node;
    return CUDA_SUCCESS;
}

CUresult capture_join(struct CUstream_st *stream, struct capture *capture, const CUgraphNode *nodes, size_t count) {
    CUresult result = CUDA_SUCCESS;
    if (stream->capture == NULL) {
        stream->capture = capture;
        stream->next_participant = capture->participants;
        capture->participants = stream;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = depend_on(stream, nodes[i]);
    }
    return result;
}

CUresult capture_add(struct CUstream_st *stream, const CUgraphNodeParams *params, CUgraphNode *node) {
    if (stream->capture->invalidated) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    CUresult result = graph_add(stream->capture->graph, stream->depends_on, stream->depends_count, params, node);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    stream->depends_count = 0;
    return depend_on(stream, *node);
}

static void remove_capture(struct capture *capture) {
    struct capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    while (capture->participants != NULL) {
        leave(capture->participants);
    }
    free(capture);
}

void capture_forget_stream(struct CUstream_st *stream) {
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return;
    }
    capture->invalidated = true;
    if (capture->origin != stream) {
        leave(stream);
        return;
    }
    if (!capture->to_existing_graph) {
        graph_destroy(capture->graph);
    }
    remove_capture(capture);
}

static CUresult begin(const char *call, CUstream handle, CUgraph graph, const CUgraphNode *nodes, size_t count,
                      CUstreamCaptureMode mode) {
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count > 0 && nodes == NULL)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (stream == stream->object.context->legacy_stream) {
        return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
    }
    struct capture *capture = malloc(sizeof *capture);
    bool existing = graph != NULL;
    if (capture == NULL || (graph == NULL && (graph = graph_new()) == NULL)) {
        free(capture);
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *capture = (struct capture){.next = captures,
                                .graph = graph,
                                .mode = mode,
                                .thread = pthread_self(),
                                .origin = stream,
                                .id = ++last_id,
                                .to_existing_graph = existing};
    captures = capture;
    return driver_leave(capture_join(stream, capture, nodes, count));
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return begin(__func__, stream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return cuStreamBeginCapture(per_thread(stream)); }

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin(__func__, stream, NULL, NULL, 0, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    (void)edges;
    return graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(__func__, stream, graph, dependencies, count, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return cuStreamBeginCaptureToGraph(per_thread(stream), graph, dependencies, edges, count, mode);
}

static bool joined(const struct capture *capture) {
    return graph_all_before(capture->graph, capture->origin->depends_on, capture->origin->depends_count);
}

static CUresult end(struct CUstream_st *stream, CUgraph *graph) {
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capture->origin != stream) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUresult result = capture->invalidated                                   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !capture->to_existing_graph && !joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                                             : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS && !capture->to_existing_graph) {
        graph_destroy(capture->graph);
    }
    *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    remove_capture(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(graph == NULL ? CUDA_ERROR_INVALID_VALUE : end(stream, graph));
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(per_thread(stream), graph);
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream) {
    return stream->capture == NULL          ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (status == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (stream == stream->object.context->legacy_stream && holds_back_legacy(capture, stream)) {
            return driver_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
    }
    *status = status_of(stream);
    return driver_leave(CUDA_SUCCESS);
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) {
    return cuStreamIsCapturing(per_thread(stream), status);
}

static CUresult info_as(const char *call, CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                        CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (status == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *status = status_of(stream);
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id != NULL) {
            *id = stream->capture->id;
        }
        if (graph != NULL) {
            *graph = stream->capture->graph;
        }
        if (dependencies != NULL) {
            *dependencies = stream->depends_on;
        }
        if (count != NULL) {
            *count = stream->depends_count;
        }
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return info_as(__func__, stream, status, id, NULL, NULL, NULL);
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo(per_thread(stream), status, id);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count) {
    return info_as(__func__, stream, status, id, graph, dependencies, count);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, size_t *count) {
    return cuStreamGetCaptureInfo_v2(per_thread(stream), status, id, graph, dependencies, count);
}

/* No edge here carries data. */
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count) {
    CUresult result = info_as(__func__, stream, status, id, graph, dependencies, count);
    if (result == CUDA_SUCCESS && edges != NULL) {
        *edges = NULL;
    }
    return result;
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                                        size_t *count) {
    return cuStreamGetCaptureInfo_v3(per_thread(stream), status, id, graph, dependencies, edges, count);
}

static CUresult update_as(const char *call, CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags) {
    enum { SET = 1 };
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags > SET || (count > 0 && nodes == NULL)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (status_of(stream) != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
    }
    if (flags == SET) {
        stream->depends_count = 0;
    }
    return driver_leave(capture_join(stream, stream->capture, nodes, count));
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags) {
    return update_as(__func__, stream, nodes, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies(per_thread(stream), nodes, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                              size_t count, unsigned int flags) {
    (void)edges;
    return update_as(__func__, stream, nodes, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                   size_t count, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies_v2(per_thread(stream), nodes, edges, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return driver_leave(CUDA_SUCCESS);
}
