/* Graphs, their nodes and what is made of them to be launched. The lock is held. */
#pragma once

#include "driver.h"

struct CUgraphNode_st {
    struct object object;
    struct CUgraphNode_st *next;
    CUgraph graph;
    CUgraphNodeParams params;
    CUgraphNode *depends_on;
    size_t depends_count;
    unsigned long long mark; /* of the last walk that came by */
};

struct CUgraph_st {
    struct object object;
    struct CUgraphNode_st *first, **last;
    size_t node_count;
};

struct CUgraphExec_st {
    struct object object;
    CUgraphNodeParams *work; /* in an order that respects the dependencies */
    CUgraphNode *origin;     /* the node that each was made of */
    size_t count;
    unsigned long long flags;
};

CUgraph graph_new(void);
CUresult graph_clone(CUgraph graph, CUgraph *clone);

/* graph_nodes.c: what making a node of these needs, such as an address for an allocation. */
CUresult graph_prepare(CUgraphNodeParams *params);

void graph_destroy(CUgraph graph);
void graph_remove_node(CUgraphNode node);
bool graph_owns(CUgraph graph, CUgraphNode node);

/* Whether there is an edge from the other to the node. */
bool graph_comes_after(CUgraphNode node, CUgraphNode other);

/* A mark that no node has yet. */
unsigned long long graph_new_mark(void);

/* Whether each node of the graph is one of these or comes before one of them. */
bool graph_all_before(CUgraph graph, const CUgraphNode *nodes, size_t count);

CUresult graph_add(CUgraph graph, const CUgraphNode *depends_on, size_t count, const CUgraphNodeParams *params,
                   CUgraphNode *node);

/* graph_memory.c: the memory that a device keeps for the allocation nodes of all graphs. */
CUresult graph_memory_reserve_address(struct device *device, size_t bytes, CUdeviceptr *address);
void graph_memory_hold(CUdeviceptr address);
void graph_memory_drop(CUdeviceptr address);
CUresult graph_memory_take(CUdeviceptr address);
CUresult graph_memory_give(CUdeviceptr address);
bool graph_memory_in_use(CUdeviceptr address);

/* Gives it all back with the primary context. */
void graph_memory_end(struct device *device);
