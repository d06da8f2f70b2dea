/* The edges of a graph: added, removed and read. None carries data here. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static CUresult add(CUgraphNode from, CUgraphNode to) {
    CUgraphNode *grown = realloc(to->depends_on, (to->depends_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    grown[to->depends_count++] = from;
    to->depends_on = grown;
    return CUDA_SUCCESS;
}

static void remove_edge(CUgraphNode from, CUgraphNode to) {
    for (size_t i = 0; i < to->depends_count; i++) {
        if (to->depends_on[i] == from) {
            to->depends_on[i] = to->depends_on[--to->depends_count];
            return;
        }
    }
}

static CUresult change_as(const char *call, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count,
                          bool adding) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(graph, OBJECT_GRAPH) || (count > 0 && (from == NULL || to == NULL))) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        bool good = graph_owns(graph, from[i]) && graph_owns(graph, to[i]) && from[i] != to[i] &&
                    graph_comes_after(to[i], from[i]) != adding;
        if (!good) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (adding) {
            result = add(from[i], to[i]);
        } else {
            remove_edge(from[i], to[i]);
        }
    }
    return driver_leave(result);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return change_as(__func__, graph, from, to, count, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
    (void)edges;
    return change_as(__func__, graph, from, to, count, true);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    return change_as(__func__, graph, from, to, count, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edges, size_t count) {
    (void)edges;
    return change_as(__func__, graph, from, to, count, false);
}

/* As many as there is room for; without a place to put them, how many there are. */
struct list {
    CUgraphNode *from, *to;
    size_t room, found;
};

static void append(struct list *list, CUgraphNode from, CUgraphNode to) {
    if (list->found < list->room) {
        if (list->from != NULL) {
            list->from[list->found] = from;
        }
        if (list->to != NULL) {
            list->to[list->found] = to;
        }
    }
    list->found++;
}

static size_t finish(const struct list *list) {
    bool counting = list->from == NULL && list->to == NULL;
    for (size_t i = list->found; !counting && i < list->room; i++) {
        if (list->from != NULL) {
            list->from[i] = NULL;
        }
        if (list->to != NULL) {
            list->to[i] = NULL;
        }
    }
    return counting || list->found < list->room ? list->found : list->room;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(graph, OBJECT_GRAPH) || count == NULL || (from == NULL) != (to == NULL)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct list list = {.from = from, .to = to, .room = *count};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->depends_count; i++) {
            append(&list, node->depends_on[i], node);
        }
    }
    *count = finish(&list);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) {
    if (edges != NULL && count != NULL) {
        memset(edges, 0, *count * sizeof *edges);
    }
    return cuGraphGetEdges(graph, from, to, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE) || count == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct list list = {.from = dependencies, .room = *count};
    for (size_t i = 0; i < node->depends_count; i++) {
        append(&list, node->depends_on[i], node);
    }
    *count = finish(&list);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *edges,
                                       size_t *count) {
    if (edges != NULL && count != NULL) {
        memset(edges, 0, *count * sizeof *edges);
    }
    return cuGraphNodeGetDependencies(node, dependencies, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *dependents, size_t *count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(node, OBJECT_GRAPH_NODE) || count == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct list list = {.from = dependents, .room = *count};
    for (CUgraphNode other = node->graph->first; other != NULL; other = other->next) {
        if (graph_comes_after(other, node)) {
            append(&list, other, node);
        }
    }
    *count = finish(&list);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *dependents, CUgraphEdgeData *edges,
                                         size_t *count) {
    if (edges != NULL && count != NULL) {
        memset(edges, 0, *count * sizeof *edges);
    }
    return cuGraphNodeGetDependentNodes(node, dependents, count);
}
