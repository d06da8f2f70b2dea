/* How many blocks fit on a multiprocessor: by threads, by shared memory, and 16 at most. */
#include "function.h"

enum { THREADS = 1024, BLOCKS = 16, SHARED_BYTES = 65536, WARP = 32 };

static int blocks_that_fit(int block_threads, size_t shared_bytes) {
    int by_threads = THREADS / block_threads;
    int by_shared = shared_bytes == 0 ? BLOCKS : (int)(SHARED_BYTES / shared_bytes);
    int most = by_threads < by_shared ? by_threads : by_shared;
    return most < BLOCKS ? most : BLOCKS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_threads,
                                                     size_t shared_bytes) {
    CUresult result = function_enter(&function, blocks);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (block_threads <= 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *blocks = blocks_that_fit(block_threads, shared_bytes);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_threads,
                                                              size_t shared_bytes, unsigned int flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE
                     : cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads, shared_bytes);
}

/* The largest block of those that keep most threads on the multiprocessor. The program's function is asked unlocked. */
CUresult cuOccupancyMaxPotentialBlockSize(int *least_grid, int *block_threads, CUfunction function,
                                          CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit) {
    CUresult result = function_enter(&function, block_threads == NULL ? NULL : least_grid);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int multiprocessors = (int)function->module->object.context->device->config.sm_count;
    driver_leave(CUDA_SUCCESS);
    int most = limit > 0 && limit < THREADS ? limit : THREADS, best = 0, best_threads = 0, best_blocks = 0;
    for (int threads = most / WARP * WARP; threads >= WARP; threads -= WARP) {
        int blocks = blocks_that_fit(threads, shared_of != NULL ? shared_of(threads) : shared_bytes);
        if (blocks * threads > best) {
            best = blocks * threads;
            best_threads = threads;
            best_blocks = blocks;
        }
    }
    *block_threads = best_threads;
    *least_grid = best_blocks * multiprocessors;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *least_grid, int *block_threads, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit,
                                                   unsigned int flags) {
    return flags > 1
               ? CUDA_ERROR_INVALID_VALUE
               : cuOccupancyMaxPotentialBlockSize(least_grid, block_threads, function, shared_of, shared_bytes, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *shared_bytes, CUfunction function, int blocks,
                                                 int block_threads) {
    CUresult result = function_enter(&function, shared_bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (blocks <= 0 || block_threads <= 0 || blocks > blocks_that_fit(block_threads, 0)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *shared_bytes = SHARED_BYTES / (size_t)blocks;
    return driver_leave(CUDA_SUCCESS);
}
