#pragma once

#include "driver.h"

/* Runs a kernel. Nothing computes; what it does is load its code. The lock is held. */
CUresult launch_run(struct CUctx_st *context, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel);
