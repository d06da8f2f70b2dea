#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void) {
    CUgraph graph = object_new(OBJECT_GRAPH, sizeof *graph, NULL, NULL);
    if (graph != NULL) {
        graph->last = &graph->first;
    }
    return graph;
}

bool graph_owns(CUgraph graph, CUgraphNode node) { return object_is(node, OBJECT_GRAPH_NODE) && node->graph == graph; }

unsigned long long graph_new_mark(void) {
    static unsigned long long last;
    return ++last;
}

bool graph_comes_after(CUgraphNode node, CUgraphNode other) {
    for (size_t i = 0; i < node->depends_count; i++) {
        if (node->depends_on[i] == other) {
            return true;
        }
    }
    return false;
}

bool graph_all_before(CUgraph graph, const CUgraphNode *nodes, size_t count) {
    unsigned long long mark = graph_new_mark();
    CUgraphNode *reached = malloc((graph->node_count + 1) * sizeof(CUgraphNode));
    size_t found = 0;
    for (size_t i = 0; reached != NULL && i < count; i++) {
        if (nodes[i]->mark != mark) {
            nodes[i]->mark = mark;
            reached[found++] = nodes[i];
        }
    }
    for (size_t i = 0; i < found; i++) {
        for (size_t j = 0; j < reached[i]->depends_count; j++) {
            CUgraphNode before = reached[i]->depends_on[j];
            if (before->mark != mark) {
                before->mark = mark;
                reached[found++] = before;
            }
        }
    }
    free(reached);
    return found == graph->node_count;
}

static void node_free(CUgraphNode node) {
    if (node->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        graph_memory_drop(node->params.alloc.dptr);
    }
    if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        graph_destroy(node->params.graph.graph);
    }
    free(node->depends_on);
    object_delete(node);
}

void graph_destroy(CUgraph graph) {
    while (graph->first != NULL) {
        CUgraphNode node = graph->first;
        graph->first = node->next;
        node_free(node);
    }
    object_delete(graph);
}

void graph_remove_node(CUgraphNode node) {
    CUgraph graph = node->graph;
    CUgraphNode *link = &graph->first;
    while (*link != node) {
        link = &(*link)->next;
    }
    *link = node->next;
    graph->last = &graph->first;
    for (CUgraphNode other = graph->first; other != NULL; other = other->next) {
        graph->last = &other->next;
        for (size_t i = 0; i < other->depends_count; i++) {
            if (other->depends_on[i] == node) {
                other->depends_on[i--] = other->depends_on[--other->depends_count];
            }
        }
    }
    graph->node_count--;
    node_free(node);
}

CUresult graph_add(CUgraph graph, const CUgraphNode *depends_on, size_t count, const CUgraphNodeParams *params,
                   CUgraphNode *out) {
    for (size_t i = 0; i < count; i++) {
        if (!graph_owns(graph, depends_on[i])) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    CUgraphNode *copy = malloc((count + 1) * sizeof *copy);
    CUgraphNode node = copy == NULL ? NULL : object_new(OBJECT_GRAPH_NODE, sizeof *node, NULL, NULL);
    if (node == NULL) {
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        copy[i] = depends_on[i];
    }
    node->graph = graph;
    node->params = *params;
    node->depends_on = copy;
    node->depends_count = count;
    *graph->last = node;
    graph->last = &node->next;
    graph->node_count++;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (graph == NULL || flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUgraph made = graph_new();
    if (made != NULL) {
        *graph = made;
    }
    return driver_leave(made != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphDestroy(CUgraph graph) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(graph, OBJECT_GRAPH)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    graph_destroy(graph);
    return driver_leave(CUDA_SUCCESS);
}

/* Nodes get their like in the copy, by position. Allocation nodes cannot be copied: their addresses are theirs alone. */
CUresult graph_clone(CUgraph graph, CUgraph *clone) {
    CUgraph copy = graph_new();
    CUgraphNode *made = malloc((graph->node_count + 1) * sizeof *made);
    CUresult result = copy != NULL && made != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    size_t index = 0;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        CUgraphNodeParams params = node->params;
        if (params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            result = CUDA_ERROR_NOT_SUPPORTED;
        } else if (params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
            result = graph_clone(node->params.graph.graph, &params.graph.graph);
        }
        if (result == CUDA_SUCCESS) {
            result = graph_add(copy, NULL, 0, &params, &made[index++]);
        }
    }
    index = 0;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next, index++) {
        made[index]->depends_on = realloc(made[index]->depends_on, (node->depends_count + 1) * sizeof(CUgraphNode));
        if (made[index]->depends_on == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        size_t position = 0;
        for (CUgraphNode other = graph->first; other != NULL; other = other->next, position++) {
            if (graph_comes_after(node, other)) {
                made[index]->depends_on[made[index]->depends_count++] = made[position];
            }
        }
    }
    free(made);
    if (result != CUDA_SUCCESS && copy != NULL) {
        graph_destroy(copy);
    }
    *clone = copy;
    return result;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (clone == NULL || !object_is(graph, OBJECT_GRAPH)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUgraph copy;
    result = graph_clone(graph, &copy);
    if (result == CUDA_SUCCESS) {
        *clone = copy;
    }
    return driver_leave(result);
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots_only) {
    if (!object_is(graph, OBJECT_GRAPH) || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t found = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (roots_only && node->depends_count > 0) {
            continue;
        }
        if (nodes != NULL && found < *count) {
            nodes[found] = node;
        }
        found++;
    }
    for (size_t i = found; nodes != NULL && i < *count; i++) {
        nodes[i] = NULL;
    }
    *count = nodes == NULL || found < *count ? found : *count;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    CUresult result = driver_enter();
    return result != CUDA_SUCCESS ? result : driver_leave(list_nodes(graph, nodes, count, false));
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    CUresult result = driver_enter();
    return result != CUDA_SUCCESS ? result : driver_leave(list_nodes(graph, nodes, count, true));
}
