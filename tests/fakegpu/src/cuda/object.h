/*
 * What a handle points to. A destroyed object keeps its memory for the next one of its type, so a stale handle is
 * recognised as long as the memory is not in use again, and is never a wild pointer. The lock is held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum object_type {
    OBJECT_NONE,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,
    OBJECT_LINK,
    OBJECT_ARRAY,
    OBJECT_MIPMAP,
    OBJECT_POOL,
    OBJECT_GRAPH,
    OBJECT_GRAPH_NODE,
    OBJECT_GRAPH_EXEC,
    OBJECT_ALLOCATION,
    OBJECT_EXTERNAL_MEMORY,
    OBJECT_GREEN_CONTEXT,
    OBJECT_RESOURCE_DESCRIPTION,
    OBJECT_TYPES
};

struct CUctx_st;

/* First member of every such structure. */
struct object {
    enum object_type type;
    struct CUctx_st *context; /* that it dies with, or NULL */
    struct object *next, **link;
    void (*destroy)(void *object); /* called when its context ends */
};

/* Zeroed. NULL if the host has no memory. */
void *object_new(enum object_type type, size_t bytes, struct CUctx_st *context, void (*destroy)(void *object));
bool object_is(const void *handle, enum object_type type);
void object_delete(void *handle);

/* Destroys everything that a context owns. */
void objects_end(struct CUctx_st *context);
