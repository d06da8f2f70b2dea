/* Contexts cost memory, and what was allocated in one ends with it. */
#include "contexts.h"

#include "../compute/turn.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "arrays.h"
#include "linear.h"
#include "modules.h"
#include "overhead.h"
#include "pools.h"

static struct records *contexts(void)
{
    return &process->holdings.contexts;
}

/* The record's `bytes` is the device, since its `device` is the region's index. */
static void note(CUcontext context, CUdevice device, unsigned index)
{
    records_add(contexts(), (struct record){.key = (uintptr_t)context, .bytes = (uint64_t)device, .device = index, .owner = 1});
}

static void gone(CUcontext context, unsigned index)
{
    struct record record;
    records_take(contexts(), (uintptr_t)context, &record);
    __atomic_fetch_add(&process->holdings.contexts_ended, 1, __ATOMIC_ACQ_REL);
    linear_gone_with(context);
    arrays_gone_with(context);
    modules_gone_with(context);
    overhead_context_gone(index);
}

/* Before and after a call that makes a context. */
struct creation {
    CUdevice device;
    struct charge charge;
};

static CUresult before_creation(struct creation *creation, CUdevice device)
{
    struct payer payer;
    CUresult result = charge_device(device, &payer);
    creation->device = device;
    return result == CUDA_SUCCESS ? overhead_before_context(payer, &creation->charge) : result;
}

static CUresult after_creation(const struct creation *creation, CUresult result, const CUcontext *made)
{
    overhead_after_context(&creation->charge, result);
    if (result == CUDA_SUCCESS && creation->charge.payer.device != DEVICE_NONE)
        note(*made, creation->device, creation->charge.payer.device);
    return result;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct creation creation;
    CUresult result = before_creation(&creation, dev);
    return result == CUDA_SUCCESS ? after_creation(&creation, cuda.cuCtxCreate(pctx, flags, dev), pctx) : result;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct creation creation;
    CUresult result = before_creation(&creation, dev);
    return result == CUDA_SUCCESS ? after_creation(&creation, cuda.cuCtxCreate_v2(pctx, flags, dev), pctx) : result;
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev)
{
    struct creation creation;
    CUresult result = before_creation(&creation, dev);
    return result == CUDA_SUCCESS
               ? after_creation(&creation, cuda.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev), pctx)
               : result;
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    struct creation creation;
    CUresult result = before_creation(&creation, dev);
    return result == CUDA_SUCCESS ? after_creation(&creation, cuda.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev), pctx)
                                  : result;
}

CUresult cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    struct creation creation;
    CUresult result = before_creation(&creation, device);
    return result == CUDA_SUCCESS ? after_creation(&creation, cuda.cuGLCtxCreate(pCtx, Flags, device), pCtx) : result;
}

CUresult cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    struct creation creation;
    CUresult result = before_creation(&creation, device);
    return result == CUDA_SUCCESS ? after_creation(&creation, cuda.cuGLCtxCreate_v2(pCtx, Flags, device), pCtx) : result;
}

CUresult cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device, VdpDevice vdpDevice,
                          VdpGetProcAddress *vdpGetProcAddress)
{
    struct creation creation;
    CUresult result = before_creation(&creation, device);
    return result == CUDA_SUCCESS
               ? after_creation(&creation, cuda.cuVDPAUCtxCreate(pCtx, flags, device, vdpDevice, vdpGetProcAddress), pCtx)
               : result;
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device, VdpDevice vdpDevice,
                             VdpGetProcAddress *vdpGetProcAddress)
{
    struct creation creation;
    CUresult result = before_creation(&creation, device);
    return result == CUDA_SUCCESS
               ? after_creation(&creation, cuda.cuVDPAUCtxCreate_v2(pCtx, flags, device, vdpDevice, vdpGetProcAddress), pCtx)
               : result;
}

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
        gone(ctx, record.device);
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
        gone(context, record.device);
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

/* Stacks, heaps and buffers of the current context may have grown. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuCtxSetLimit(limit, value);
    if (result == CUDA_SUCCESS)
        overhead_grown(payer.device, booked);
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
    CUdevice device;
    struct payer payer;
    struct charge charge;
    bool charged;
};

/* Before a call that may make the primary context. The lock is held until primary_after. */
static CUresult primary_before(struct primary_change *change, CUdevice device)
{
    CUresult result = charge_device(device, &change->payer);
    if (result != CUDA_SUCCESS)
        return result;
    change->device = device;
    change->charged = false;
    lock_take(&process->holdings.primary_lock);
    if (change->payer.device != DEVICE_NONE && !process->holdings.primary[change->payer.device]) {
        result = overhead_before_context(change->payer, &change->charge);
        change->charged = result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        lock_drop(&process->holdings.primary_lock);
    return result;
}

static void primary_after(const struct primary_change *change, CUresult result, CUcontext context)
{
    if (change->charged) {
        overhead_after_context(&change->charge, result);
        if (result == CUDA_SUCCESS) {
            process->holdings.primary[change->payer.device] = context;
            note(context, change->device, change->payer.device);
        }
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
        gone(*primary, payer.device);
        pools_may_be_gone(payer.device);
        *primary = NULL;
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
    if (result == CUDA_SUCCESS)
        records_add(contexts(), (struct record){.key = (uintptr_t)*phCtx, .bytes = (uint64_t)dev, .owner = 1});
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
    if (known && result == CUDA_SUCCESS)
        primary_may_be_gone((CUdevice)record.bytes);
    else if (known)
        records_add(contexts(), record);
    return result;
}

static CUresult device_of_context(CUcontext context, CUdevice *device)
{
    struct record record;
    CUcontext popped;
    if (records_find(contexts(), (uintptr_t)context, &record)) {
        *device = (CUdevice)record.bytes;
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
