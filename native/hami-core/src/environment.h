/* HAMi's environment contract, for containers that are not managed. docs/environment.md is the user's page. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CUDA_DEVICE_MEMORY_LIMIT_<device>, else CUDA_DEVICE_MEMORY_LIMIT; *bytes is LIMIT_NONE where neither limits. False: a value is
 * not valid and nothing valid stands in for it; reason[REASON_BYTES] names it. */
bool environment_memory_limit(unsigned device, uint64_t *bytes, char *reason);

/* CUDA_DEVICE_SM_LIMIT_<device>, else CUDA_DEVICE_SM_LIMIT, in percent, 100 = none. False as above. */
bool environment_cores(unsigned device, uint64_t *percent, char *reason);

/* ISOLATOR_MEMORY_LIMIT, by which a process of a managed container lowers its own limit. False as above. */
bool environment_own_limit(uint64_t *bytes, char *reason);

/* GPU_CORE_UTILIZATION_POLICY: whether a compute cap holds. HAMi: any other word, or none, leaves it to the monitor. */
enum cores_policy { CORES_BY_MONITOR, CORES_ALWAYS, CORES_NEVER };
enum cores_policy environment_cores_policy(void);

/* CUDA_TASK_PRIORITY, 1 if not set. */
int environment_priority(void);

/* Where HAMi keeps the region: CUDA_DEVICE_MEMORY_SHARED_CACHE; else usage.cache below CONTAINER_VGPU_MOUNT, by POD_UID and
 * CONTAINER_NAME; else REGION_FALLBACK. *derived: the directory is ours to make. False: does not fit. */
#define REGION_FALLBACK "/tmp/cudevshr.cache"
bool environment_region_path(char *path, size_t bytes, bool *derived);

#endif
