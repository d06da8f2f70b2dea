/* Contexts: which device they belong to, and what ends with them. */
#ifndef CONTEXTS_H
#define CONTEXTS_H

#include <stdbool.h>

#include "../driver_abi.h"

/* The device of a stream, which may be of another context than the current one. Errors are the driver's. */
CUresult context_device_of_stream(CUstream stream, bool per_thread, CUdevice *device);

#endif
