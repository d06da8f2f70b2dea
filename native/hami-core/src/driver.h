/* NVIDIA's own functions. Until the driver's library is found, and for what it lacks, each is a stand-in that returns an error,
 * so that calling one never crashes. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "driver_abi.h"

#pragma GCC visibility push(hidden)

struct cuda_functions {
#define CUDA(name, parameters) CUresult(*name) parameters;
#define NVML(name, parameters)
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
};

struct nvml_functions {
#define CUDA(name, parameters)
#define NVML(name, parameters) nvmlReturn_t(*name) parameters;
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
};

extern struct cuda_functions cuda;
extern struct nvml_functions nvml;

/* Whether the driver that was found has the function at this place of `cuda` or `nvml`. */
bool driver_has(void *const *function);

/* Fills `cuda` or `nvml` once the program has loaded the library, and keeps that library loaded from then on.
 * False: not loaded (yet). */
bool driver_find_cuda(void);
bool driver_find_nvml(void);

/* Loads libnvidia-ml.so.1 if the program has not. False: there is none. */
bool driver_load_nvml(void);

/* The same, begun once and kept for what asks often: beginning NVML takes longer than what is asked. False: NVML is not to be had now. */
bool driver_begin_nvml(void);

#pragma GCC visibility pop

#endif
