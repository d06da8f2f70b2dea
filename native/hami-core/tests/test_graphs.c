/* What a graph is charged for while it is uploaded, by a driver of this file: its memory node is in a graph within it. */
#include "../src/charge.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

#define OUTER ((CUgraph)0x100)
#define INNER ((CUgraph)0x200)
#define INNER_NODE ((CUgraphNode)1)
#define OTHER_NODE ((CUgraphNode)2)
#define MEMORY_NODE ((CUgraphNode)3)

enum { CARD = 1, ASKED = 10, KEPT = 8 };

static uint64_t kept, charged_meanwhile;

static CUresult instantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    (void)graph;
    (void)flags;
    *made = (CUgraphExec)0x300;
    return CUDA_SUCCESS;
}

static CUresult nodes_of(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    *count = graph == OUTER ? 2 : 1;
    if (nodes && graph == OUTER) {
        nodes[0] = OTHER_NODE;
        nodes[1] = INNER_NODE;
    } else if (nodes) {
        nodes[0] = MEMORY_NODE;
    }
    return CUDA_SUCCESS;
}

static CUresult type_of(CUgraphNode node, CUgraphNodeType *type)
{
    *type = node == INNER_NODE ? CU_GRAPH_NODE_TYPE_GRAPH : node == MEMORY_NODE ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : (CUgraphNodeType)0;
    return CUDA_SUCCESS;
}

static CUresult graph_of(CUgraphNode node, CUgraph *graph)
{
    CHECK(node == INNER_NODE);
    *graph = INNER;
    return CUDA_SUCCESS;
}

static CUresult memory_of(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    CHECK(node == MEMORY_NODE);
    params->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, CARD};
    params->bytesize = ASKED * MIB;
    return CUDA_SUCCESS;
}

static CUresult kept_for_graphs(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    CHECK(attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    *(cuuint64_t *)value = device == CARD ? kept : 0;
    return CUDA_SUCCESS;
}

static CUresult upload(CUgraphExec graph, CUstream stream)
{
    (void)graph;
    (void)stream;
    charged_meanwhile = charge_held(CARD);
    kept = KEPT * MIB;
    return CUDA_SUCCESS;
}

TEST(a_graph_is_charged_for_what_is_in_it_until_the_driver_tells)
{
    CUgraphExec graph;
    attached_begin();
    cuda.cuGraphInstantiateWithFlags = instantiate;
    cuda.cuGraphGetNodes = nodes_of;
    cuda.cuGraphNodeGetType = type_of;
    cuda.cuGraphChildGraphNodeGetGraph = graph_of;
    cuda.cuGraphMemAllocNodeGetParams = memory_of;
    cuda.cuDeviceGetGraphMemAttribute = kept_for_graphs;
    cuda.cuGraphUpload = upload;
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&graph, OUTER, 0), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(CARD), 0);
    CHECK_EQUAL(cuGraphUpload(graph, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(charged_meanwhile, ASKED * MIB);
    CHECK_EQUAL(charge_held(CARD), KEPT * MIB);
    CHECK_EQUAL(charge_held(0), 0);
    /* That was enough for it, and is when it is launched again. */
    CHECK_EQUAL(cuGraphUpload(graph, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(charged_meanwhile, KEPT * MIB);
}
