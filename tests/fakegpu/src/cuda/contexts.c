/* Contexts, and the stack of current ones that each thread has. */
#include "capture.h"
#include "driver.h"
#include "graph.h"
#include "ipc.h"
#include "limits.h"
#include "memory.h"
#include "pool.h"
#include "queue.h"
#include "ranges.h"

#include <stdlib.h>

enum { STACK = 64, VALID_FLAGS = 0xff };

static _Thread_local struct {
    struct CUctx_st *context[STACK];
    unsigned long long id[STACK]; /* tells a destroyed context from a new one at its address */
    int depth;
} current;

static struct CUctx_st *live_contexts, *views;
static unsigned long long last_id;

static bool is_listed(const struct CUctx_st *list, const struct CUctx_st *context) {
    while (list != NULL && list != context) {
        list = list->next;
    }
    return list != NULL;
}

struct CUctx_st *context_of(const struct CUctx_st *handle) {
    if (is_listed(views, handle)) {
        return handle->stands_for->live && handle->stands_for->id == handle->id ? handle->stands_for : NULL;
    }
    return is_listed(live_contexts, handle) ? (struct CUctx_st *)(uintptr_t)handle : NULL;
}

bool context_is_live(const struct CUctx_st *context) { return context_of(context) != NULL; }

struct CUctx_st *context_view(struct CUctx_st *primary) {
    struct CUctx_st *view = malloc(sizeof *view);
    if (view != NULL) {
        *view = (struct CUctx_st){.stands_for = primary, .id = primary->id, .next = views};
        views = view;
    }
    return view;
}

void context_view_end(struct CUctx_st *view) {
    struct CUctx_st **link = &views;
    while (*link != view) {
        link = &(*link)->next;
    }
    *link = view->next; /* its structure stays, as that of any context */
}

static struct CUctx_st *top(void) { return current.depth == 0 ? NULL : current.context[current.depth - 1]; }

CUresult context_current(struct CUctx_st **context) {
    if (top() == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = context_of(top());
    bool live = *context != NULL && (*context)->id == current.id[current.depth - 1];
    return live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_open(struct CUctx_st *context, struct device *device, unsigned flags, unsigned api_version) {
    uint64_t cost = device->config.context_bytes;
    if (!memory_open(device) || !device_take(device, MEMORY_CONTEXT, cost)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *context = (struct CUctx_st){.device = device,
                                 .next = live_contexts,
                                 .id = ++last_id,
                                 .flags = flags,
                                 .api_version = api_version,
                                 .attached = 1,
                                 .primary = context == &device->primary,
                                 .live = true,
                                 .charged_bytes = cost};
    limits_start(context);
    live_contexts = context;
    state_count_context(&driver.attachment, device->state_index, 1);
    return CUDA_SUCCESS;
}

void context_close(struct CUctx_st *context) {
    struct CUctx_st **link = &live_contexts;
    while (*link != context) {
        link = &(*link)->next;
    }
    *link = context->next;
    context->live = false;
    queue_drop(context->device);
    objects_end(context);
    ranges_end(context, memory_free_range);
    ipc_end(context);
    if (context->primary) {
        pools_end(context->device);
        graph_memory_end(context->device);
    }
    device_note_requested(context->device, -(int64_t)context->requested_bytes);
    arena_give_context(&context->device->arena, context);
    device_give(context->device, MEMORY_CONTEXT, context->charged_bytes);
    state_count_context(&driver.attachment, context->device->state_index, -1);
}

static CUresult push(struct CUctx_st *context) {
    if (current.depth == STACK) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    current.context[current.depth] = context;
    current.id[current.depth++] = context->id;
    return CUDA_SUCCESS;
}

static CUresult create(const char *call, CUcontext *out, unsigned flags, CUdevice dev, unsigned api_version) {
    struct device *device;
    CUresult result = device_enter_as(call, dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || (flags & ~(unsigned)VALID_FLAGS) != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = capture_forbids_unsafe_call();
    struct CUctx_st *context = result == CUDA_SUCCESS ? malloc(sizeof *context) : NULL;
    if (context == NULL) {
        return driver_leave(result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result);
    }
    result = context_open(context, device, flags, api_version);
    if (result == CUDA_SUCCESS && (result = push(context)) != CUDA_SUCCESS) {
        context_close(context);
    }
    if (result != CUDA_SUCCESS) {
        free(context);
        return driver_leave(result);
    }
    *out = context;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev) {
    return create(__func__, context, flags, dev, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev) {
    return create(__func__, context, flags, dev, 3020);
}

/* A share of the multiprocessors needs an MPS server, which is not there. */
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice dev) {
    return affinity != NULL && count > 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
                                         : create(__func__, context, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
    if (params != NULL && params->cigParams != NULL) {
        return CUDA_ERROR_NOT_SUPPORTED; /* sharing with a graphics client */
    }
    if (params != NULL && params->execAffinityParams != NULL && params->numExecAffinityParams > 0) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    return create(__func__, context, flags, dev, 3020);
}

/* The structure of a destroyed context is not freed, so that a stale handle is recognised and never followed. */
static CUresult destroy_locked(struct CUctx_st *context) {
    if (context_of(context) != context || context->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (top() == context) {
        current.depth--;
    }
    context_close(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult result = driver_enter_unsafe();
    return result != CUDA_SUCCESS ? result : driver_leave(destroy_locked(context));
}

CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    struct CUctx_st *mine;
    CUresult result = context_enter(&mine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context == NULL || flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    mine->attached++;
    *context = mine;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext context) {
    struct CUctx_st *mine;
    CUresult result = context_enter_unsafe(&mine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mine != context) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--mine->attached == 0) {
        result = destroy_locked(mine);
    }
    return driver_leave(result);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(context_is_live(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    if (current.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (context != NULL) {
        *context = top();
    }
    current.depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context != NULL && !context_is_live(context)) {
        return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    current.depth -= current.depth > 0;
    return driver_leave(context == NULL ? CUDA_SUCCESS : push(context));
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = top();
    return CUDA_SUCCESS;
}
