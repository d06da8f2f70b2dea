/* Allocations of cuMemAlloc. The lock is held. */
#pragma once

#include "types.h"

#include <stdbool.h>

struct address;
struct device;
struct range;

/* Makes the device's address space for this process. */
bool memory_open(struct device *device);

/* Frees whatever cuMemFree may free. */
CUresult memory_free(CUdeviceptr address);

/* Ends a range of any kind that a context owns. */
void memory_free_range(struct range *range);

/* ipc.c: takes back what cuIpcGetMemHandle made of a block that is freed. */
void memory_forget_shared(const struct address *block);
