/* Every function that NVIDIA's header declares, in all versions. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
