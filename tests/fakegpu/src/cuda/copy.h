/* Copies and fills of memory and arrays; they move real data. The lock is held. */
#pragma once

#include "types.h"

#include <stdbool.h>

CUresult copy_run(const CUDA_MEMCPY3D *copy);
CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS_v2 *fill);
