/* Graphs that were made ready to launch. */
#include "graph.h"
#include "queue.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

static void count_work(CUgraph graph, size_t *count) {
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
            count_work(node->params.graph.graph, count);
        } else {
            ++*count;
        }
    }
}

static bool is_ready(CUgraphNode node, unsigned long long mark) {
    for (size_t i = 0; i < node->depends_count; i++) {
        if (node->depends_on[i]->mark != mark) {
            return false;
        }
    }
    return true;
}

/* Appends the nodes of a graph, each after what it depends on. False if they depend on each other in a circle. */
static bool append(CUgraphExec exec, CUgraph graph) {
    unsigned long long mark = graph_new_mark();
    size_t count = 0;
    for (bool progress = true; progress;) { /* once, but for edges that were added backwards */
        progress = false;
        for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
            if (node->mark == mark || !is_ready(node, mark)) {
                continue;
            }
            progress = true;
            node->mark = mark;
            count++;
            if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
                if (!append(exec, node->params.graph.graph)) {
                    return false;
                }
                continue;
            }
            if (node->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
                graph_memory_hold(node->params.alloc.dptr);
            }
            exec->work[exec->count] = node->params;
            exec->origin[exec->count++] = node;
        }
    }
    return count == graph->node_count;
}

static void destroy(CUgraphExec exec) {
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->work[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            graph_memory_drop(exec->work[i].alloc.dptr);
        }
    }
    free(exec->work);
    free(exec->origin);
    object_delete(exec);
}

static CUresult instantiate_as(const char *call, CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    enum { KNOWN_FLAGS = 15 };
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || !object_is(graph, OBJECT_GRAPH) || (flags & ~(unsigned long long)KNOWN_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    size_t count = 0;
    count_work(graph, &count);
    CUgraphExec exec = object_new(OBJECT_GRAPH_EXEC, sizeof *exec, NULL, NULL);
    if (exec == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    exec->flags = flags;
    exec->work = calloc(count + 1, sizeof *exec->work);
    exec->origin = calloc(count + 1, sizeof(CUgraphNode));
    if (exec->work == NULL || exec->origin == NULL || !append(exec, graph)) {
        result = exec->work == NULL || exec->origin == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
        destroy(exec);
        return driver_leave(result);
    }
    *out = exec;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes) {
    CUresult result = instantiate_as(__func__, exec, graph, 0);
    if (error_node != NULL && result != CUDA_SUCCESS) {
        *error_node = NULL;
    }
    if (log != NULL && log_bytes > 0) {
        log[0] = '\0';
    }
    return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                               size_t log_bytes) {
    return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate_as(__func__, exec, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = instantiate_as(__func__, exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = cuGraphUpload(*exec, params->hUploadStream);
    }
    return result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (params != NULL) {
        params->hUploadStream = per_thread(params->hUploadStream);
    }
    return cuGraphInstantiateWithParams(exec, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(exec, OBJECT_GRAPH_EXEC)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    destroy(exec);
    return driver_leave(CUDA_SUCCESS);
}

/* Memory that an earlier launch allocated and nobody freed. */
static CUresult free_left_over(CUgraphExec exec) {
    for (size_t i = 0; i < exec->count; i++) {
        const CUgraphNodeParams *work = &exec->work[i];
        if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && graph_memory_in_use(work->alloc.dptr)) {
            if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            graph_memory_give(work->alloc.dptr);
        }
    }
    return CUDA_SUCCESS;
}

/* Memory of all allocations first: a launch that does not get it starts nothing. */
static CUresult back(CUgraphExec exec) {
    CUresult result = free_left_over(exec);
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        if (exec->work[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            continue;
        }
        result = graph_memory_take(exec->work[i].alloc.dptr);
        for (size_t taken = i; result != CUDA_SUCCESS && taken-- > 0;) {
            if (exec->work[taken].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
                graph_memory_give(exec->work[taken].alloc.dptr);
            }
        }
    }
    return result;
}

static CUresult launch(CUgraphExec exec, struct CUstream_st *stream) {
    if (stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    uint64_t kernels_ns = 0;
    CUresult result = back(exec);
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        if (exec->work[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            result = work_run(stream, &exec->work[i], &kernels_ns);
        }
    }
    return result != CUDA_SUCCESS ? result : queue_submit(stream, kernels_ns); /* one unit */
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = object_is(exec, OBJECT_GRAPH_EXEC);
    return driver_leave(good ? launch(exec, stream) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, per_thread(stream)); }

/* Takes the memory that a launch will need, so that the launch does not have to. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(exec, OBJECT_GRAPH_EXEC)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = back(exec);
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        if (exec->work[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            graph_memory_give(exec->work[i].alloc.dptr);
        }
    }
    return driver_leave(result);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphUpload(exec, per_thread(stream)); }

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(exec, OBJECT_GRAPH_EXEC) || flags == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = exec->flags;
    return driver_leave(CUDA_SUCCESS);
}

/* Replaces what a kernel node of the graph launches in what was made of it. */
static CUresult set_kernel_as(const char *call, CUgraphExec exec, CUgraphNode node, const void *kernel, size_t bytes) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; object_is(exec, OBJECT_GRAPH_EXEC) && kernel != NULL && i < exec->count; i++) {
        if (exec->origin[i] == node && exec->work[i].type == CU_GRAPH_NODE_TYPE_KERNEL) {
            memcpy(&exec->work[i].kernel, kernel, bytes);
            result = CUDA_SUCCESS;
        }
    }
    return driver_leave(result);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    return set_kernel_as(__func__, exec, node, kernel, sizeof *kernel);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *kernel) {
    return set_kernel_as(__func__, exec, node, kernel, sizeof *kernel);
}

/* Takes over what a graph of the same shape does now. Memory nodes keep their addresses, so they do not take part. */
static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph, CUgraphNode *wrong) {
    size_t count = 0;
    count_work(graph, &count);
    *wrong = NULL;
    CUgraphExec fresh = count == exec->count ? object_new(OBJECT_GRAPH_EXEC, sizeof *fresh, NULL, NULL) : NULL;
    if (fresh == NULL) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    fresh->work = calloc(count + 1, sizeof *fresh->work);
    fresh->origin = calloc(count + 1, sizeof(CUgraphNode));
    CUgraphExecUpdateResult result = fresh->work != NULL && fresh->origin != NULL && append(fresh, graph)
                                         ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                         : CU_GRAPH_EXEC_UPDATE_ERROR;
    for (size_t i = 0; i < count && result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        CUgraphNodeType type = fresh->work[i].type;
        bool memory = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
        if (type != exec->work[i].type || memory) {
            *wrong = fresh->origin[i];
            result = memory ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED : CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
    }
    if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        memcpy(exec->work, fresh->work, count * sizeof *exec->work);
    }
    destroy(fresh);
    return result;
}

static CUresult update_as(const char *call, CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResult *out,
                          CUgraphNode *wrong) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(exec, OBJECT_GRAPH_EXEC) || !object_is(graph, OBJECT_GRAPH)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *out = update(exec, graph, wrong);
    bool good = *out == CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *wrong, CUgraphExecUpdateResult *out) {
    CUgraphNode node;
    CUgraphExecUpdateResult found;
    return update_as(__func__, exec, graph, out != NULL ? out : &found, wrong != NULL ? wrong : &node);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    CUgraphExecUpdateResultInfo own, *out = info != NULL ? info : &own;
    out->errorFromNode = NULL;
    return update_as(__func__, exec, graph, &out->result, &out->errorNode);
}
