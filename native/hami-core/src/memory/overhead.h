/* Device memory whose size no API tells: contexts, modules, stacks and heaps. One figure a process and device: what NVML books for
 * this process less what is charged for it otherwise, where its PID on the node is known; else an estimate for each context. */
#ifndef OVERHEAD_H
#define OVERHEAD_H

#include "../charge.h"

/* A context is about to be made: its estimate is charged. CUDA_ERROR_OUT_OF_MEMORY: the container has no room for one. */
CUresult overhead_before_context(struct payer payer, struct charge *charge);

/* After the driver's answer. */
void overhead_after_context(const struct charge *charge, CUresult result);

/* A context of the device is gone. */
void overhead_context_gone(unsigned device);

/* Memory is about to be refused: what is there beside what calls were seen to take? */
void overhead_settle(unsigned device);

/* For overhead_grown, before a call: what NVML books for this process, if it holds managed memory, else 0. */
uint64_t overhead_booked(unsigned device);

/* A module was loaded, a limit raised. Bytes that it grew by. */
uint64_t overhead_grown(unsigned device, uint64_t booked_before);

/* What had made it grow by so much is gone. */
void overhead_shrink(unsigned device, uint64_t bytes);

/* MiB of an empty context on a card of this compute capability: approximate, from what nvidia-smi shows for one. */
uint64_t overhead_estimate_mib(int major, int minor);

#endif
