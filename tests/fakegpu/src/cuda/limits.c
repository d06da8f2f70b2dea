#include "limits.h"

#include "driver.h"

static const size_t standard[CONTEXT_LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
    [CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0,
};

void limits_start(struct CUctx_st *context) {
    for (int i = 0; i < CONTEXT_LIMITS; i++) {
        context->limit[i] = standard[i];
    }
}

/* Memory that a limit takes beyond what the context's own cost covers: every resident thread has a stack. */
static uint64_t cost_of(const struct device *device, CUlimit limit, size_t value) {
    enum { THREADS_PER_MULTIPROCESSOR = 1024 };
    uint64_t beyond = value > standard[limit] ? value - standard[limit] : 0;
    if (limit == CU_LIMIT_STACK_SIZE) {
        beyond *= (uint64_t)device->config.sm_count * THREADS_PER_MULTIPROCESSOR;
    } else if (limit != CU_LIMIT_PRINTF_FIFO_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE) {
        return 0;
    }
    return (beyond + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
}

static CUresult set(struct CUctx_st *context, CUlimit limit, size_t value) {
    if ((unsigned)limit >= CONTEXT_LIMITS) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    uint64_t before = cost_of(context->device, limit, context->limit[limit]);
    uint64_t after = cost_of(context->device, limit, value);
    if (after > before && !device_take(context->device, MEMORY_CONTEXT, after - before)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (after < before) {
        device_give(context->device, MEMORY_CONTEXT, before - after);
    }
    context->charged_bytes += after - before;
    context->limit[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    return result != CUDA_SUCCESS ? result : driver_leave(set(context, limit, value));
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    struct CUctx_st *context;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if ((unsigned)limit >= CONTEXT_LIMITS) {
        return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
    *value = context->limit[limit];
    return driver_leave(CUDA_SUCCESS);
}
