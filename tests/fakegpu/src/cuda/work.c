/* Doing what a stream was told, or what a graph holds. The lock is held. */
#include "copy.h"
#include "graph.h"
#include "launch.h"
#include "pool.h"
#include "queue.h"
#include "stream.h"

CUresult work_run(struct CUstream_st *stream, CUgraphNodeParams *work, uint64_t *kernel_ns) {
    uint64_t length_ns = 0;
    CUresult result;
    switch (work->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        result = launch_run(stream->object.context, &work->kernel, &length_ns);
        *kernel_ns += length_ns;
        return result;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_run(&work->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return fill_run(&work->memset);
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS_v1 host = work->host;
        result = queue_wait(stream);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        driver_leave(CUDA_SUCCESS); /* it may call the driver's queries, and takes its own time */
        host.fn(host.userData);
        pthread_mutex_lock(&driver_lock);
        return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        if (!object_is(work->eventRecord.event, OBJECT_EVENT)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        event_mark(work->eventRecord.event, stream);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_memory_give(work->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        break; /* done when the launch begins, or nothing to do */
    }
    return CUDA_SUCCESS;
}

CUresult stream_do(struct CUstream_st *stream, const CUgraphNodeParams *work) {
    struct CUctx_st *context = stream->object.context;
    if (stream->capture != NULL) {
        CUgraphNode node;
        return capture_add(stream, work, &node);
    }
    if (stream == context->legacy_stream) {
        CUresult result = capture_forbids_legacy(stream);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    CUgraphNodeParams copy = *work;
    uint64_t kernel_ns = 0;
    CUresult result = work_run(stream, &copy, &kernel_ns);
    return result != CUDA_SUCCESS ? result : queue_submit(stream, kernel_ns);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNodeParams work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.fn = function, .userData = data}};
    return driver_leave(function == NULL ? CUDA_ERROR_INVALID_VALUE : stream_do(stream, &work));
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data) {
    return cuLaunchHostFunc(per_thread(stream), function, data);
}

CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned int sync_mode) {
    return sync_mode > 1 ? CUDA_ERROR_INVALID_VALUE : cuLaunchHostFunc(stream, function, data);
}

CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn function, void *data, unsigned int sync_mode) {
    return cuLaunchHostFunc_v2(per_thread(stream), function, data, sync_mode);
}
