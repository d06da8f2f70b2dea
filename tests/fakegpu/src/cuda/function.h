#pragma once

#include "module.h"

/* The function that a handle means, which may be a kernel of a library. The lock is held. */
CUresult function_get(CUfunction handle, struct CUctx_st *context, CUfunction *function);
