#pragma once

#include "types.h"

struct CUctx_st;
struct range;

/* Ends the shared blocks of a context. The lock is held. */
void ipc_end(struct CUctx_st *context);

/* The same of a pool's memory. */
struct arena;
void ipc_end_arena(const struct arena *arena);

/* Handles of blocks of cuMemAlloc or of pools, and memory of others by them, as 64 bytes. */
struct device;
enum { IPC_HANDLE_BYTES = 64 };
CUresult ipc_export(void *handle, CUdeviceptr address, const struct arena *arena);
CUresult ipc_open(const void *handle, struct device *device, struct CUctx_st *context, CUdeviceptr *address);

/* Closes it once; the memory goes with the last time. */
void ipc_close_once(struct range *range);

/* Closes another process's memory, however often it was opened. */
void ipc_close(struct range *range);
