/* Contexts, and the stack of current ones that each thread has. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { STACK = 64, VALID_FLAGS = 0xff };

static _Thread_local struct {
    struct CUctx_st *context[STACK];
    unsigned long long id[STACK]; /* tells a destroyed context from a new one at its address */
    int depth;
} current;

static struct CUctx_st *live_contexts;
static unsigned long long last_id;

bool context_is_live(const struct CUctx_st *context) {
    for (const struct CUctx_st *other = live_contexts; other != NULL; other = other->next) {
        if (other == context) {
            return true;
        }
    }
    return false;
}

static struct CUctx_st *top(void) { return current.depth == 0 ? NULL : current.context[current.depth - 1]; }

static CUresult current_locked(struct CUctx_st **context) {
    *context = top();
    if (*context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    bool live = context_is_live(*context) && (*context)->id == current.id[current.depth - 1];
    return live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(struct CUctx_st **context) {
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    pthread_mutex_lock(&driver_lock);
    CUresult result = current_locked(context);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult context_open(struct CUctx_st *context, struct device *device, unsigned flags, unsigned api_version) {
    uint64_t cost = device->config.context_bytes;
    if (!arena_open(&device->arena, device, device_capacity(device)) || !device_take(device, MEMORY_CONTEXT, cost)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool primary = context == &device->primary;
    *context = (struct CUctx_st){.device = device,
                                 .next = live_contexts,
                                 .id = ++last_id,
                                 .flags = flags,
                                 .api_version = api_version,
                                 .attached = 1,
                                 .primary = primary,
                                 .live = true,
                                 .charged_bytes = cost};
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

static CUresult create(CUcontext *out, unsigned flags, CUdevice dev, unsigned api_version) {
    struct device *device;
    CUresult result = device_get(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || (flags & ~(unsigned)VALID_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUctx_st *context = malloc(sizeof *context);
    if (context == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&driver_lock);
    result = context_open(context, device, flags, api_version);
    if (result == CUDA_SUCCESS && (result = push(context)) != CUDA_SUCCESS) {
        context_close(context);
    }
    pthread_mutex_unlock(&driver_lock);
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    *out = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev) {
    return create(context, flags, dev, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev) {
    return create(context, flags, dev, 3020);
}

/* The structure of a destroyed context is not freed, so that a stale handle is recognised and never followed. */
static CUresult destroy_locked(struct CUctx_st *context) {
    if (!context_is_live(context) || context->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (top() == context) {
        current.depth--;
    }
    context_close(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    pthread_mutex_lock(&driver_lock);
    CUresult result = destroy_locked(context);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    struct CUctx_st *mine;
    CUresult result = context_current(&mine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver_lock);
    mine->attached++;
    pthread_mutex_unlock(&driver_lock);
    *context = mine;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context) {
    struct CUctx_st *mine;
    CUresult result = context_current(&mine);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver_lock);
    if (mine != context) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--mine->attached == 0) {
        result = destroy_locked(mine);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    pthread_mutex_lock(&driver_lock);
    CUresult result = context_is_live(context) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&driver_lock);
    return result;
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
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    if (context == NULL) {
        current.depth -= current.depth > 0;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&driver_lock);
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    if (context_is_live(context)) {
        current.depth -= current.depth > 0;
        result = push(context);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
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

/* The context that a handle names; NULL stands for the current one. */
static CUresult named(CUcontext handle, struct CUctx_st **context) {
    if (handle == NULL) {
        return context_current(context);
    }
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS) {
        return ready;
    }
    pthread_mutex_lock(&driver_lock);
    bool live = context_is_live(handle);
    pthread_mutex_unlock(&driver_lock);
    *context = handle;
    return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult check(const void *out, CUcontext handle, struct CUctx_st **context) {
    CUresult result = named(handle, context);
    return result == CUDA_SUCCESS && out == NULL ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext handle) {
    struct CUctx_st *context;
    CUresult result = check(dev, handle, &context);
    if (result == CUDA_SUCCESS) {
        *dev = (CUdevice)(context->device - driver.device);
    }
    return result;
}

CUresult cuCtxGetDevice(CUdevice *dev) { return cuCtxGetDevice_v2(dev, NULL); }

CUresult cuCtxGetFlags(unsigned int *flags) {
    struct CUctx_st *context;
    CUresult result = check(flags, NULL, &context);
    if (result == CUDA_SUCCESS) {
        *flags = context->flags;
    }
    return result;
}

CUresult cuCtxSetFlags(unsigned int flags) {
    struct CUctx_st *context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)VALID_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    struct CUctx_st *context;
    CUresult result = check(id, handle, &context);
    if (result == CUDA_SUCCESS) {
        *id = context->id;
    }
    return result;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    struct CUctx_st *context;
    CUresult result = check(version, handle, &context);
    if (result == CUDA_SUCCESS) {
        *version = context->api_version;
    }
    return result;
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
    struct CUctx_st *context;
    return named(handle, &context);
}

CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }
