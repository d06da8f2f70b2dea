/* Limits of a context: stacks, the printf buffer and the device's heap cost memory as they grow. The lock is held. */
#pragma once

struct CUctx_st;

void limits_start(struct CUctx_st *context);
