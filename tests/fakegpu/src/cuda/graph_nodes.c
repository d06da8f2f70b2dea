/* Adding nodes to a graph, and reading them. */
#include "graph.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* An allocation node gets its address when it is made, and memory when the graph is launched. */
CUresult graph_prepare(CUgraphNodeParams *params) {
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        CUmemLocation location = params->alloc.poolProps.location;
        if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 || location.id >= driver.device_count ||
            params->alloc.bytesize == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        return graph_memory_reserve_address(&driver.device[location.id], params->alloc.bytesize, &params->alloc.dptr);
    }
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        if (!object_is(params->graph.graph, OBJECT_GRAPH)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        return graph_clone(params->graph.graph, &params->graph.graph);
    }
    return CUDA_SUCCESS;
}

static CUresult add_as(const char *call, CUgraphNode *out, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                       CUgraphNodeParams *params) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || !object_is(graph, OBJECT_GRAPH) || (count > 0 && depends_on == NULL)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = graph_prepare(params);
    if (result == CUDA_SUCCESS) {
        result = graph_add(graph, depends_on, count, params, out);
    }
    return driver_leave(result);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *kernel) {
    if (kernel == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = *kernel};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    if (kernel == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, kernel, sizeof *kernel); /* the later structure begins with this one */
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                              const CUDA_MEMCPY3D *copy, CUcontext context) {
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {.copyCtx = context, .copyParams = *copy}};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS_v1 *fill, CUcontext context) {
    if (fill == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(&params.memset, fill, sizeof *fill);
    params.memset.ctx = context;
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                            const CUDA_HOST_NODE_PARAMS_v1 *host) {
    if (host == NULL || host->fn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *host};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                                  CUgraph child) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = child}};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                                   CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = {.event = event}};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                                 CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = {.event = event}};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *alloc) {
    if (alloc == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *alloc};
    CUresult result = add_as(__func__, node, graph, depends_on, count, &params);
    if (result == CUDA_SUCCESS) {
        alloc->dptr = params.alloc.dptr;
    }
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                               CUdeviceptr address) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {.dptr = address}};
    return add_as(__func__, node, graph, depends_on, count, &params);
}

static bool is_modelled(CUgraphNodeType type) {
    return (type >= CU_GRAPH_NODE_TYPE_KERNEL && type <= CU_GRAPH_NODE_TYPE_EVENT_RECORD) ||
           type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on, size_t count,
                        CUgraphNodeParams *params) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return is_modelled(params->type) ? add_as(__func__, node, graph, depends_on, count, params)
                                     : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges;
    return cuGraphAddNode(node, graph, depends_on, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *depends_on,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges;
    return cuGraphAddNode(node, graph, depends_on, count, params);
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (node->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    graph_remove_node(node);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE) || type == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *type = node->params.type;
    return driver_leave(CUDA_SUCCESS);
}

static CUresult read_as(const char *call, CUgraphNode node, CUgraphNodeType type, void *out, const void *from,
                        size_t bytes) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE) || out == NULL || node->params.type != type) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    memcpy(out, from, bytes);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, &node->params.alloc, sizeof *out);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_MEM_FREE, out, &node->params.free.dptr, sizeof *out);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_KERNEL, out, &node->params.kernel, sizeof *out);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_KERNEL, out, &node->params.kernel, sizeof *out);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_MEMCPY, out, &node->params.memcpy.copyParams, sizeof *out);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v1 *out) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_MEMSET, out, &node->params.memset, sizeof *out);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    return read_as(__func__, node, CU_GRAPH_NODE_TYPE_GRAPH, graph, &node->params.graph.graph, sizeof *graph);
}

static CUresult set_kernel_as(const char *call, CUgraphNode node, const void *kernel, size_t bytes) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE) || kernel == NULL || node->params.type != CU_GRAPH_NODE_TYPE_KERNEL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    memcpy(&node->params.kernel, kernel, bytes);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel) {
    return set_kernel_as(__func__, node, kernel, sizeof *kernel);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel) {
    return set_kernel_as(__func__, node, kernel, sizeof *kernel);
}
