/* Names to functions, from the table in api.def alone. */
#pragma once

#include "types.h"

#include <stdbool.h>

/* Names that are newer than the driver of the configuration are unknown from here on. */
void lookup_limit(int driver_cuda_version);

/* NULL, and why in *status, if a program of that CUDA version finds no function of that name. */
void *lookup(const char *name, unsigned cuda_version, bool per_thread_stream, CUdriverProcAddressQueryResult *status);
