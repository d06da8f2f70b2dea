#include "launch.h"

#include "function.h"
#include "queue.h"
#include "stream.h"

static bool fits(const CUDA_KERNEL_NODE_PARAMS_v2 *kernel) {
    enum { MOST_X = 2147483647, MOST_YZ = 65535, MOST_THREADS = 1024, MOST_DEPTH = 64 };
    uint64_t threads = (uint64_t)kernel->blockDimX * kernel->blockDimY * kernel->blockDimZ;
    return kernel->gridDimX > 0 && kernel->gridDimX <= MOST_X && kernel->gridDimY > 0 && kernel->gridDimY <= MOST_YZ &&
           kernel->gridDimZ > 0 && kernel->gridDimZ <= MOST_YZ && threads > 0 && threads <= MOST_THREADS &&
           kernel->blockDimZ <= MOST_DEPTH;
}

CUresult launch_run(struct CUctx_st *context, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel, uint64_t *length_ns) {
    CUfunction function;
    CUresult result = function_get(kernel->func != NULL ? kernel->func : (CUfunction)kernel->kern, context, &function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function->module->object.context != context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!fits(kernel) ||
        (int)kernel->sharedMemBytes > function->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = module_load_code(function->module);
    if (result == CUDA_SUCCESS) {
        *length_ns = queue_kernel_length(function);
    }
    return result;
}

static CUresult launch_as(const char *call, CUfunction function, const unsigned grid[3], const unsigned block[3],
                          unsigned shared_bytes, CUstream handle, void **params, void **extra) {
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNodeParams work = {.type = CU_GRAPH_NODE_TYPE_KERNEL,
                              .kernel = {.func = function,
                                         .gridDimX = grid[0],
                                         .gridDimY = grid[1],
                                         .gridDimZ = grid[2],
                                         .blockDimX = block[0],
                                         .blockDimY = block[1],
                                         .blockDimZ = block[2],
                                         .sharedMemBytes = shared_bytes,
                                         .kernelParams = params,
                                         .extra = extra}};
    return driver_leave(function == NULL ? CUDA_ERROR_INVALID_VALUE : stream_do(stream, &work));
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra) {
    return launch_as(__func__, function, (unsigned[]){grid_x, grid_y, grid_z}, (unsigned[]){block_x, block_y, block_z},
                     shared_bytes, stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y, unsigned int block_z,
                             unsigned int shared_bytes, CUstream stream, void **params, void **extra) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, per_thread(stream),
                          params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return launch_as(__func__, function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                     (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                     config->hStream, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (config == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUlaunchConfig own = *config;
    own.hStream = per_thread(config->hStream);
    return cuLaunchKernelEx(&own, function, params, extra);
}

/* All blocks must be on the device at once. */
static bool too_many_blocks(const unsigned grid[3], const unsigned block[3]) {
    enum { THREADS = 1024, BLOCKS = 16 };
    struct CUctx_st *context;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (threads == 0 || driver_enter_as("cuLaunchCooperativeKernel", SAFE) != CUDA_SUCCESS) {
        return false;
    }
    unsigned multiprocessors = context_current(&context) == CUDA_SUCCESS ? context->device->config.sm_count : 0;
    driver_leave(CUDA_SUCCESS);
    uint64_t each = THREADS / threads < BLOCKS ? THREADS / threads : BLOCKS;
    return multiprocessors > 0 && (uint64_t)grid[0] * grid[1] * grid[2] > each * multiprocessors;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **params) {
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    if (too_many_blocks(grid, block)) {
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return launch_as(__func__, function, grid, block, shared_bytes, stream, params, NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                        void **params) {
    return cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                     per_thread(stream), params);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags) {
    if (launches == NULL || count == 0 || flags > 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *launch = &launches[i];
        result = launch_as(__func__, launch->function,
                           (unsigned[]){launch->gridDimX, launch->gridDimY, launch->gridDimZ},
                           (unsigned[]){launch->blockDimX, launch->blockDimY, launch->blockDimZ},
                           launch->sharedMemBytes, launch->hStream, launch->kernelParams, NULL);
    }
    return result;
}

/* The oldest way: the function knows its block, and parameters are set beforehand. */
static CUresult launch_grid_as(const char *call, CUfunction function, int width, int height, CUstream stream) {
    if (!object_is(function, OBJECT_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (width <= 0 || height <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return launch_as(call, function, (unsigned[]){(unsigned)width, (unsigned)height, 1}, function->block,
                     function->shared_bytes, stream, NULL, NULL);
}

CUresult cuLaunch(CUfunction function) { return launch_grid_as(__func__, function, 1, 1, NULL); }

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    return launch_grid_as(__func__, function, width, height, NULL);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    return launch_grid_as(__func__, function, width, height, stream);
}
