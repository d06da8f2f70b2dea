#pragma once

struct CUctx_st;
struct range;

/* Ends the shared blocks of a context. The lock is held. */
void ipc_end(struct CUctx_st *context);

/* Closes another process's memory, however often it was opened. */
void ipc_close(struct range *range);
