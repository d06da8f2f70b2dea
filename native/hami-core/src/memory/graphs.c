#include "graphs.h"

#include <stdlib.h>

#include "../compute/turn.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "../quiet.h"
#include "linear.h"
#include "overhead.h"

/* A pointer that a graph allocates and leaves to the program to free, or, with no bytes, frees for another. */
struct pointer {
    CUdeviceptr address;
    uint64_t bytes;
    unsigned device;
};

/* Of one executable graph: bytes of its memory nodes on each device, and what does not end with a launch. */
struct graph {
    uint64_t bytes[REGION_DEVICES];
    struct pointer *pointers;
    size_t count;
};

static void drop(struct graph *graph)
{
    free(graph->pointers);
    free(graph);
}

static struct holdings *holdings(void)
{
    return &process->holdings;
}

static bool reserved(unsigned device, uint64_t *bytes)
{
    cuuint64_t value;
    if (cuda.cuDeviceGetGraphMemAttribute(device_handle(device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
        return false;
    *bytes = value;
    return true;
}

/* Under the device's lock. */
static void settle_one(unsigned device)
{
    struct charge *charge = &holdings()->graph_memory[device];
    uint64_t bytes;
    if (reserved(device, &bytes)) {
        charge->payer.device = device;
        charge_correct(charge, bytes);
    }
}

void graphs_settle(void)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        /* One that is being launched settles itself. */
        if (!holdings()->graph_memory[device].bytes || !lock_try(&holdings()->graph_lock[device]))
            continue;
        struct quiet quiet = quiet_begin();
        settle_one(device);
        quiet_end(quiet);
        lock_drop(&holdings()->graph_lock[device]);
    }
}

void graphs_trim(unsigned device)
{
    if (!holdings()->graph_memory[device].bytes || !lock_try(&holdings()->graph_lock[device]))
        return;
    cuda.cuDeviceGraphMemTrim(device_handle(device));
    settle_one(device);
    lock_drop(&holdings()->graph_lock[device]);
}

/* An allocation and its release in the same graph leave nothing. Without memory for it, a pointer counts as released. */
static void add_pointer(struct graph *sum, struct pointer pointer)
{
    for (size_t i = sum->count; i-- > 0;) {
        if (sum->pointers[i].address == pointer.address) {
            sum->pointers[i] = sum->pointers[--sum->count];
            return;
        }
    }
    struct pointer *more = realloc(sum->pointers, (sum->count + 1) * sizeof(*more));
    if (!more)
        return;
    sum->pointers = more;
    sum->pointers[sum->count++] = pointer;
}

static bool add_nodes(CUgraph graph, struct graph *sum);

static bool add_node(CUgraphNode node, struct graph *sum)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.dptr = 0};
    CUgraphNodeType type;
    CUdeviceptr freed;
    CUgraph child;
    struct payer payer;

    if (cuda.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return false;
    switch (type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        if (cuda.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS ||
            charge_device(params.poolProps.location.id, &payer) != CUDA_SUCCESS)
            return false;
        if (payer.device == DEVICE_NONE)
            return false;
        sum->bytes[payer.device] += charge_whole_pieces(params.bytesize);
        add_pointer(sum, (struct pointer){params.dptr, charge_whole_pieces(params.bytesize), payer.device});
        return true;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        if (cuda.cuGraphMemFreeNodeGetParams(node, &freed) != CUDA_SUCCESS)
            return false;
        add_pointer(sum, (struct pointer){.address = freed});
        return true;
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuda.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS && add_nodes(child, sum);
    }
    return false;
}

/* True: the graph has memory nodes. */
static bool add_nodes(CUgraph graph, struct graph *sum)
{
    size_t count = 0;
    bool any = false;
    if (cuda.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return false;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes && cuda.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            any |= add_node(nodes[i], sum);
    free(nodes);
    return any;
}

static void forget(CUgraphExec exec)
{
    struct record record;
    if (records_take(&holdings()->graphs, (uintptr_t)exec, &record))
        drop((struct graph *)(uintptr_t)record.owner);
}

/* After the driver has made an executable graph, maybe under the name of one that ended with its context. */
static CUresult instantiated(CUresult result, const CUgraphExec *made, CUgraph source)
{
    struct graph *kept;
    if (result != CUDA_SUCCESS || process->attachment != COUNTED)
        return result;
    forget(*made);
    kept = calloc(1, sizeof(*kept));
    struct quiet quiet = quiet_begin();
    bool any = kept && add_nodes(source, kept);
    quiet_end(quiet);
    if (any && records_add(&holdings()->graphs, (struct record){.key = (uintptr_t)*made, .owner = (uintptr_t)kept}))
        return result;
    if (kept)
        drop(kept);
    if (kept && !any)
        return result;
    cuda.cuGraphExecDestroy(*made);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS
               ? instantiated(cuda.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize), phGraphExec, hGraph)
               : result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS ? instantiated(cuda.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize),
                                                 phGraphExec, hGraph)
                                  : result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    CUresult result = container_enter();
    return result == CUDA_SUCCESS ? instantiated(cuda.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags), phGraphExec, hGraph)
                                  : result;
}

static void for_each_locked(const bool locked[REGION_DEVICES], void (*act)(unsigned device))
{
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        if (locked[device])
            act(device);
}

static void unlock(unsigned device)
{
    lock_drop(&holdings()->graph_lock[device]);
}

/* Under the device's lock, but for frees. */
static void count_pointers(unsigned device, uint64_t bytes)
{
    __atomic_fetch_add(&holdings()->graph_pointers[device], bytes, __ATOMIC_RELAXED);
}

void graph_pointer_freed(const struct record *record)
{
    count_pointers(record->device, -record->bytes);
}

static bool is_held(const struct pointer *pointer)
{
    struct record record;
    return records_find(&holdings()->linear, pointer->address, &record) && record.kind == LINEAR_OF_GRAPH;
}

/* What is kept on a device and in use by no pointer, but those that a launch of this graph frees before it allocates them anew. */
static uint64_t spare(const struct graph *graph, unsigned device)
{
    uint64_t kept = holdings()->graph_memory[device].bytes, used = __atomic_load_n(&holdings()->graph_pointers[device], __ATOMIC_RELAXED);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->pointers[i].bytes && graph->pointers[i].device == device && is_held(&graph->pointers[i]))
            used -= graph->pointers[i].bytes;
    return kept > used ? kept - used : 0;
}

/* After a launch. The pointers end with the primary context, as all that is kept for graphs. */
static void note_pointers(const struct graph *graph)
{
    struct record record;
    for (size_t i = 0; i < graph->count; i++) {
        const struct pointer *pointer = &graph->pointers[i];
        bool held = is_held(pointer);
        if (held && !pointer->bytes && records_take(&holdings()->linear, pointer->address, &record))
            graph_pointer_freed(&record);
        else if (!held && pointer->bytes &&
                 records_add(&holdings()->linear,
                             (struct record){.key = pointer->address,
                                             .bytes = pointer->bytes,
                                             .device = pointer->device,
                                             .kind = LINEAR_OF_GRAPH,
                                             .owner = (uintptr_t)__atomic_load_n(&holdings()->primary[pointer->device], __ATOMIC_RELAXED)}))
            count_pointers(pointer->device, pointer->bytes);
    }
}

/* Charges what the driver will have to take for this graph beyond what it keeps to spare, and leaves the devices locked. */
static CUresult reserve(const struct graph *graph, bool locked[REGION_DEVICES])
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        struct charge growth, *kept = &holdings()->graph_memory[device];
        if (!graph->bytes[device])
            continue;
        lock_take(&holdings()->graph_lock[device]);
        locked[device] = true;
        settle_one(device);
        uint64_t has = spare(graph, device);
        if (graph->bytes[device] <= has)
            continue;
        CUresult result = charge_take(&growth, (struct payer){device, NULL}, CHARGE_DATA, graph->bytes[device] - has);
        if (result != CUDA_SUCCESS)
            return result;
        kept->payer.device = device;
        kept->bytes += growth.bytes;
    }
    return CUDA_SUCCESS;
}

/* What the driver keeps after a launch was enough for this graph: nodes that are freed within it may share memory. */
static void settle_after(struct graph *graph, const bool locked[REGION_DEVICES], CUresult result)
{
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        const struct charge *kept = &holdings()->graph_memory[device];
        if (!locked[device])
            continue;
        settle_one(device);
        if (result == CUDA_SUCCESS && kept->bytes > 0 && kept->bytes < graph->bytes[device])
            graph->bytes[device] = kept->bytes;
    }
}

static CUresult take_and(CUgraphExec exec, CUstream stream, CUresult (*ask)(CUgraphExec, CUstream), bool launches)
{
    bool locked[REGION_DEVICES] = {false};
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS || !records_find(&holdings()->graphs, (uintptr_t)exec, &record))
        return result == CUDA_SUCCESS ? ask(exec, stream) : result;
    struct graph *graph = (struct graph *)(uintptr_t)record.owner;
    struct quiet quiet = quiet_begin();
    result = reserve(graph, locked);
    quiet_end(quiet);
    for_each_locked(locked, overhead_grows);
    if (result == CUDA_SUCCESS)
        result = ask(exec, stream);
    if (result == CUDA_SUCCESS && launches)
        note_pointers(graph);
    quiet = quiet_begin();
    settle_after(graph, locked, result);
    quiet_end(quiet);
    for_each_locked(locked, overhead_grew);
    for_each_locked(locked, unlock);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    struct turn turn;
    CUresult result = turn_take(&turn, cost_key((uintptr_t)hGraphExec, 0, 0), hStream, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, take_and(hGraphExec, hStream, cuda.cuGraphLaunch, true)) : result;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    struct turn turn;
    CUresult result = turn_take(&turn, cost_key((uintptr_t)hGraphExec, 0, 0), hStream, true);
    return result == CUDA_SUCCESS ? turn_end(&turn, take_and(hGraphExec, hStream, cuda.cuGraphLaunch_ptsz, true)) : result;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    return take_and(hGraphExec, hStream, cuda.cuGraphUpload, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    return take_and(hGraphExec, hStream, cuda.cuGraphUpload_ptsz, false);
}

/* Instantiation may upload as well, which takes the graph's memory: here that is a step of its own. */
static CUresult instantiate_with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                                        CUresult (*ask)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
                                        CUresult (*upload)(CUgraphExec, CUstream))
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!params || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return instantiated(ask(exec, graph, params), exec, graph);
    params->flags &= ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    result = instantiated(ask(exec, graph, params), exec, graph);
    params->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    if (result != CUDA_SUCCESS)
        return result;
    result = take_and(*exec, params->hUploadStream, upload, false);
    if (result != CUDA_SUCCESS) {
        params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        cuGraphExecDestroy(*exec);
    }
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    return instantiate_with_params(phGraphExec, hGraph, instantiateParams, cuda.cuGraphInstantiateWithParams, cuda.cuGraphUpload);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    return instantiate_with_params(phGraphExec, hGraph, instantiateParams, cuda.cuGraphInstantiateWithParams_ptsz,
                                   cuda.cuGraphUpload_ptsz);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&holdings()->graphs, (uintptr_t)hGraphExec, &record);
    turn_graph_ends(cost_key((uintptr_t)hGraphExec, 0, 0));
    result = cuda.cuGraphExecDestroy(hGraphExec);
    if (known && result == CUDA_SUCCESS)
        drop((struct graph *)(uintptr_t)record.owner);
    else if (known)
        records_add(&holdings()->graphs, record);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct payer payer;
    CUresult result = charge_device(device, &payer);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuDeviceGraphMemTrim(device);
    graphs_settle();
    return result;
}
