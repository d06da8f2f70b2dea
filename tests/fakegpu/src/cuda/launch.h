#pragma once

#include "driver.h"

/* Runs a kernel. Nothing computes: it loads its code, and takes time. The lock is held. */
CUresult launch_run(struct CUctx_st *context, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel, uint64_t *length_ns);
