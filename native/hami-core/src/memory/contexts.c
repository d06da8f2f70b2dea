/* Contexts cost memory, and what was allocated in one ends with it. */
#include "contexts.h"

#include "../compute/turn.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "arrays.h"
#include "graphs.h"
#include "linear.h"
#include "modules.h"
#include "overhead.h"
#include "pools.h"

static struct records *contexts(void)
{
    return &process->holdings.contexts;
}

/* What a context was called may be another's name from now on. */
static void name_is_free(void)
{
    __atomic_fetch_add(&process->holdings.contexts_ended, 1, __ATOMIC_ACQ_REL);
}

/* A context that its record no longer names. Overhead is looked at last, when all else that ended with it has been given back. */
static void gone(CUcontext context, const struct record *record, bool primary)
{
    name_is_free();
    linear_gone_with(context);
    arrays_gone_with(context);
    modules_gone_with(context);
    pools_may_be_gone(record->device, primary);
    graphs_settle();
    overhead_context_gone(record->device, record->bytes);
}

static CUresult before_creation(struct overhead_context *creation, CUdevice device)
{
    struct payer payer;
    CUresult result = charge_device(device, &payer);
    return result == CUDA_SUCCESS ? overhead_before_context(payer, creation) : result;
}

static CUresult after_creation(const struct overhead_context *creation, CUresult result, const CUcontext *made)
{
    unsigned device = creation->charge.payer.device;
    uint64_t bytes = overhead_after_context(creation, result);
    if (result == CUDA_SUCCESS && device != DEVICE_NONE)
        records_add(contexts(), (struct record){.key = (uintptr_t)*made, .bytes = bytes, .device = device, .owner = 1});
    return result;
}

/* One of the calls that make a context. */
#define MAKES_CONTEXT(name, parameters, made, device, arguments)                                                                   \
    CUresult name parameters                                                                                                       \
    {                                                                                                                              \
        struct overhead_context creation;                                                                                          \
        CUresult result = before_creation(&creation, device);                                                                      \
        return result == CUDA_SUCCESS ? after_creation(&creation, cuda.name arguments, made) : result;                             \
    }

MAKES_CONTEXT(cuCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), pctx, dev, (pctx, flags, dev))
MAKES_CONTEXT(cuCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), pctx, dev, (pctx, flags, dev))
MAKES_CONTEXT(cuCtxCreate_v3,
              (CUcontext * pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev), pctx, dev,
              (pctx, paramsArray, numParams, flags, dev))
MAKES_CONTEXT(cuCtxCreate_v4, (CUcontext * pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev), pctx, dev,
              (pctx, ctxCreateParams, flags, dev))
MAKES_CONTEXT(cuGLCtxCreate, (CUcontext * pCtx, unsigned int Flags, CUdevice device), pCtx, device, (pCtx, Flags, device))
MAKES_CONTEXT(cuGLCtxCreate_v2, (CUcontext * pCtx, unsigned int Flags, CUdevice device), pCtx, device, (pCtx, Flags, device))
MAKES_CONTEXT(cuVDPAUCtxCreate,
              (CUcontext * pCtx, unsigned int flags, CUdevice device, VdpDevice vdpDevice, VdpGetProcAddress *vdpGetProcAddress),
              pCtx, device, (pCtx, flags, device, vdpDevice, vdpGetProcAddress))
MAKES_CONTEXT(cuVDPAUCtxCreate_v2,
              (CUcontext * pCtx, unsigned int flags, CUdevice device, VdpDevice vdpDevice, VdpGetProcAddress *vdpGetProcAddress),
              pCtx, device, (pCtx, flags, device, vdpDevice, vdpGetProcAddress))

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuCtxAttach(pctx, flags);
    if (result == CUDA_SUCCESS)
        records_refer(contexts(), (uintptr_t)*pctx, 1, &record);
    return result;
}

CUresult cuCtxDetach(CUcontext ctx)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    turn_contexts_end();
    result = cuda.cuCtxDetach(ctx);
    if (result == CUDA_SUCCESS && records_refer(contexts(), (uintptr_t)ctx, -1, &record) && record.owner == 0)
        gone(ctx, &record, false);
    return result;
}

/* The record goes before the driver's answer, since another thread may be given the same context right after it. */
static CUresult destroy(CUcontext context, CUresult (*ask)(CUcontext))
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(contexts(), (uintptr_t)context, &record);
    turn_contexts_end();
    result = ask(context);
    if (known && result == CUDA_SUCCESS)
        gone(context, &record, false);
    else if (known)
        records_add(contexts(), record);
    return result;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy(ctx, cuda.cuCtxDestroy);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(ctx, cuda.cuCtxDestroy_v2);
}

/* Stacks, heaps and buffers of the current context may have grown or shrunk. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuCtxSetLimit(limit, value);
    if (result == CUDA_SUCCESS && payer.device != DEVICE_NONE)
        modules_limit_changed(&payer, &before);
    return result;
}

/* The primary context is there as long as anybody retains it: the program, a library, a green context. So what counts is not how
 * often it was retained but whether the driver says that it is active. */
static bool primary_is_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return cuda.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

struct primary_change {
    struct payer payer;
    struct overhead_context creation;
    bool charged;
};

/* Before a call that may make the primary context. The lock is held until primary_after. */
static CUresult primary_before(struct primary_change *change, CUdevice device)
{
    CUresult result = charge_device(device, &change->payer);
    if (result != CUDA_SUCCESS)
        return result;
    change->charged = false;
    lock_take(&process->holdings.primary_lock);
    if (change->payer.device != DEVICE_NONE && !process->holdings.primary[change->payer.device]) {
        result = overhead_before_context(change->payer, &change->creation);
        change->charged = result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        lock_drop(&process->holdings.primary_lock);
    return result;
}

static void primary_after(const struct primary_change *change, CUresult result, CUcontext context)
{
    if (change->charged) {
        after_creation(&change->creation, result, &context);
        if (result == CUDA_SUCCESS)
            __atomic_store_n(&process->holdings.primary[change->payer.device], context, __ATOMIC_RELAXED);
    }
    lock_drop(&process->holdings.primary_lock);
}

/* After a call that may have ended the primary context. */
static void primary_may_be_gone(CUdevice device)
{
    struct payer payer;
    if (charge_device(device, &payer) != CUDA_SUCCESS || payer.device == DEVICE_NONE)
        return;
    lock_take(&process->holdings.primary_lock);
    CUcontext *primary = &process->holdings.primary[payer.device];
    if (*primary && !primary_is_active(device)) {
        struct record record = {.device = payer.device};
        records_take(contexts(), (uintptr_t)*primary, &record);
        gone(*primary, &record, true);
        __atomic_store_n(primary, NULL, __ATOMIC_RELAXED);
    }
    lock_drop(&process->holdings.primary_lock);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct primary_change change;
    CUresult result = primary_before(&change, dev);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuDevicePrimaryCtxRetain(pctx, dev);
    primary_after(&change, result, result == CUDA_SUCCESS ? *pctx : NULL);
    return result;
}

static CUresult end_primary(CUdevice device, CUresult (*ask)(CUdevice))
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    turn_contexts_end();
    result = ask(device);
    if (result == CUDA_SUCCESS)
        primary_may_be_gone(device);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return end_primary(dev, cuda.cuDevicePrimaryCtxRelease);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return end_primary(dev, cuda.cuDevicePrimaryCtxRelease_v2);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return end_primary(dev, cuda.cuDevicePrimaryCtxReset);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return end_primary(dev, cuda.cuDevicePrimaryCtxReset_v2);
}

/* A green context retains the primary one for its life. */
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    struct primary_change change;
    CUcontext primary = NULL;
    CUresult result = primary_before(&change, dev);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuGreenCtxCreate(phCtx, desc, dev, flags);
    if (result == CUDA_SUCCESS && change.charged && cuda.cuDevicePrimaryCtxRetain(&primary, dev) == CUDA_SUCCESS)
        cuda.cuDevicePrimaryCtxRelease_v2(dev);
    primary_after(&change, result, primary);
    if (result == CUDA_SUCCESS && change.payer.device != DEVICE_NONE)
        records_add(contexts(), (struct record){.key = (uintptr_t)*phCtx, .device = change.payer.device, .owner = 1});
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(contexts(), (uintptr_t)hCtx, &record);
    turn_contexts_end();
    result = cuda.cuGreenCtxDestroy(hCtx);
    if (result == CUDA_SUCCESS)
        name_is_free();
    if (known && result == CUDA_SUCCESS)
        primary_may_be_gone(device_handle(record.device));
    else if (known)
        records_add(contexts(), record);
    return result;
}

static CUresult device_of_context(CUcontext context, CUdevice *device)
{
    struct record record;
    CUcontext popped;
    if (records_find(contexts(), (uintptr_t)context, &record)) {
        *device = device_handle(record.device);
        return CUDA_SUCCESS;
    }
    CUresult result = cuda.cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuCtxGetDevice(device);
    cuda.cuCtxPopCurrent_v2(&popped);
    return result;
}

CUresult context_device_of_stream(CUstream stream, bool per_thread, CUdevice *device)
{
    enum { LAST_NAMED_STREAM = 2 }; /* NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are the current context's */
    CUcontext current, owner;
    if ((uintptr_t)stream <= LAST_NAMED_STREAM)
        return cuda.cuCtxGetDevice(device);
    CUresult result = per_thread ? cuda.cuStreamGetCtx_ptsz(stream, &owner) : cuda.cuStreamGetCtx(stream, &owner);
    if (result != CUDA_SUCCESS)
        return result;
    if (cuda.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == owner)
        return cuda.cuCtxGetDevice(device);
    return device_of_context(owner, device);
}
