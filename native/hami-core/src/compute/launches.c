/* The ways to launch, each with its turn. Graphs are launched in memory/graphs.c. */
#include "../driver.h"
#include "../hooks.h"
#include "turn.h"

static uint64_t product(unsigned x, unsigned y, unsigned z)
{
    return (uint64_t)x * y * z;
}

static uint64_t key_of(CUfunction function, uint64_t blocks, uint64_t threads)
{
    return cost_key((uintptr_t)function, blocks, threads);
}

/* Not inlined, and called as the driver is: then a launch that is free is a jump to the driver, its arguments left where they are. */
static __attribute__((noinline)) CUresult kernel_in_turn(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                                         unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                                         unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    struct turn turn;
    uint64_t key = key_of(f, product(gridDimX, gridDimY, gridDimZ), product(blockDimX, blockDimY, blockDimZ));
    CUresult result = turn_take(&turn, key, hStream, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                                                                        sharedMemBytes, hStream, kernelParams, extra))
                                  : result;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra)
{
    return (turn_is_free() ? cuda.cuLaunchKernel : kernel_in_turn)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                                                                   sharedMemBytes, hStream, kernelParams, extra);
}

static __attribute__((noinline)) CUresult kernel_in_turn_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                                              unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                                              unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                                              void **kernelParams, void **extra)
{
    struct turn turn;
    uint64_t key = key_of(f, product(gridDimX, gridDimY, gridDimZ), product(blockDimX, blockDimY, blockDimZ));
    CUresult result = turn_take(&turn, key, hStream, true);
    return result == CUDA_SUCCESS
               ? turn_end(&turn, cuda.cuLaunchKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes,
                                                          hStream, kernelParams, extra))
               : result;
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
                             CUstream hStream, void **kernelParams, void **extra)
{
    return (turn_is_free() ? cuda.cuLaunchKernel_ptsz : kernel_in_turn_ptsz)(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                                                             blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
}

/* A call without a configuration is the driver's to refuse. */
static CUresult take_ex(struct turn *turn, const CUlaunchConfig *config, CUfunction function, bool per_thread)
{
    *turn = (struct turn){.bucket = NULL};
    if (!config)
        return CUDA_SUCCESS;
    uint64_t blocks = product(config->gridDimX, config->gridDimY, config->gridDimZ);
    uint64_t threads = product(config->blockDimX, config->blockDimY, config->blockDimZ);
    return turn_take(turn, key_of(function, blocks, threads), config->hStream, per_thread);
}

static __attribute__((noinline)) CUresult kernel_in_turn_ex(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    struct turn turn;
    CUresult result = take_ex(&turn, config, f, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchKernelEx(config, f, kernelParams, extra)) : result;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    return (turn_is_free() ? cuda.cuLaunchKernelEx : kernel_in_turn_ex)(config, f, kernelParams, extra);
}

static __attribute__((noinline)) CUresult kernel_in_turn_ex_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                                                 void **extra)
{
    struct turn turn;
    CUresult result = take_ex(&turn, config, f, true);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchKernelEx_ptsz(config, f, kernelParams, extra)) : result;
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    return (turn_is_free() ? cuda.cuLaunchKernelEx_ptsz : kernel_in_turn_ex_ptsz)(config, f, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    struct turn turn;
    uint64_t key = key_of(f, product(gridDimX, gridDimY, gridDimZ), product(blockDimX, blockDimY, blockDimZ));
    CUresult result = turn_take(&turn, key, hStream, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchCooperativeKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                                                                   blockDimZ, sharedMemBytes, hStream, kernelParams))
                                  : result;
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    struct turn turn;
    uint64_t key = key_of(f, product(gridDimX, gridDimY, gridDimZ), product(blockDimX, blockDimY, blockDimZ));
    CUresult result = turn_take(&turn, key, hStream, true);
    return result == CUDA_SUCCESS
               ? turn_end(&turn, cuda.cuLaunchCooperativeKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                                                                     sharedMemBytes, hStream, kernelParams))
               : result;
}

/* One launch on several devices, each of which pays for its part. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices, unsigned int flags)
{
    /* More than a process can have is the driver's to refuse. */
    unsigned count = launchParamsList && numDevices <= REGION_DEVICES ? numDevices : 0;
    struct turn turns[REGION_DEVICES] = {{0}};
    CUresult result = CUDA_SUCCESS;
    turn_several = true;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *launch = &launchParamsList[i];
        uint64_t blocks = product(launch->gridDimX, launch->gridDimY, launch->gridDimZ);
        uint64_t threads = product(launch->blockDimX, launch->blockDimY, launch->blockDimZ);
        result = turn_take(&turns[i], key_of(launch->function, blocks, threads), launch->hStream, false);
    }
    turn_several = false;
    if (result == CUDA_SUCCESS)
        result = cuda.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
    for (unsigned i = 0; i < count; i++)
        turn_end(&turns[i], result);
    return result;
}

/* The oldest ways: threads were set beforehand, by cuFuncSetBlockShape. */
CUresult cuLaunch(CUfunction f)
{
    struct turn turn;
    CUresult result = turn_take(&turn, key_of(f, 1, 0), NULL, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunch(f)) : result;
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    struct turn turn;
    CUresult result = turn_take(&turn, key_of(f, product((unsigned)grid_width, (unsigned)grid_height, 1), 0), NULL, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchGrid(f, grid_width, grid_height)) : result;
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    struct turn turn;
    CUresult result = turn_take(&turn, key_of(f, product((unsigned)grid_width, (unsigned)grid_height, 1), 0), hStream, false);
    return result == CUDA_SUCCESS ? turn_end(&turn, cuda.cuLaunchGridAsync(f, grid_width, grid_height, hStream)) : result;
}
