/* Pools of stream-ordered memory. The lock is held. */
#pragma once

#include "types.h"

struct device;

CUresult pool_free(CUdeviceptr address);

/* What waiting for a device lets its pools do: give back what they hold beyond their release thresholds. */
void pools_shrink(struct device *device);

/* Ends all pools of a device with its primary context. */
void pools_end(struct device *device);
