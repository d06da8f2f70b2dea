#pragma once

#include "module.h"

/* The beginning of a call about a function: replaces the handle by what it means, and refuses a NULL out. */
#define function_enter(function, out) function_enter_as(__func__, function, out)
CUresult function_enter_as(const char *call, CUfunction *function, const void *out);

/* The function that a handle means, which may be a kernel of a library. The lock is held. */
CUresult function_get(CUfunction handle, struct CUctx_st *context, CUfunction *function);
