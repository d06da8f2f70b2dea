/* Prints sizes, offsets and values of NVML's ABI, by our declarations or by NVIDIA's: both must print the same. */
#include "facts.h"
#ifdef OURS
#include "../../src/driver_abi.h"
#include "../../src/region_layout.h"
#define NVML_DEVICE_UUID_V2_BUFFER_SIZE REGION_UUID_BYTES
#else
#include <nvml.h>
#define NVML_VALUE_NOT_AVAILABLE_ULL (unsigned long long)NVML_VALUE_NOT_AVAILABLE
#endif

int main(void)
{
    SIZE(nvmlReturn_t)
    SIZE(nvmlDevice_t)
    VALUE(NVML_SUCCESS)
    VALUE(NVML_ERROR_INVALID_ARGUMENT)
    VALUE(NVML_ERROR_NO_PERMISSION)
    VALUE(NVML_ERROR_NOT_FOUND)
    VALUE(NVML_ERROR_INSUFFICIENT_SIZE)
    VALUE(NVML_ERROR_LIBRARY_NOT_FOUND)
    VALUE(NVML_ERROR_FUNCTION_NOT_FOUND)
    VALUE(NVML_VALUE_NOT_AVAILABLE_ULL)
    VALUE(NVML_DEVICE_UUID_V2_BUFFER_SIZE)
    SIZE(nvmlMemory_t)
    AT(nvmlMemory_t, total)
    AT(nvmlMemory_t, free)
    AT(nvmlMemory_t, used)
    SIZE(nvmlMemory_v2_t)
    AT(nvmlMemory_v2_t, version)
    AT(nvmlMemory_v2_t, total)
    AT(nvmlMemory_v2_t, reserved)
    AT(nvmlMemory_v2_t, free)
    AT(nvmlMemory_v2_t, used)
    SIZE(nvmlProcessInfo_v1_t)
    AT(nvmlProcessInfo_v1_t, pid)
    AT(nvmlProcessInfo_v1_t, usedGpuMemory)
    SIZE(nvmlProcessInfo_v2_t)
    AT(nvmlProcessInfo_v2_t, pid)
    AT(nvmlProcessInfo_v2_t, usedGpuMemory)
    AT(nvmlProcessInfo_v2_t, gpuInstanceId)
    AT(nvmlProcessInfo_v2_t, computeInstanceId)
    SIZE(nvmlProcessInfo_t)
    AT(nvmlProcessInfo_t, pid)
    AT(nvmlProcessInfo_t, usedGpuMemory)
    AT(nvmlProcessInfo_t, gpuInstanceId)
    AT(nvmlProcessInfo_t, computeInstanceId)
    SIZE(nvmlProcessUtilizationSample_t)
    AT(nvmlProcessUtilizationSample_t, pid)
    AT(nvmlProcessUtilizationSample_t, timeStamp)
    AT(nvmlProcessUtilizationSample_t, smUtil)
    AT(nvmlProcessUtilizationSample_t, memUtil)
    AT(nvmlProcessUtilizationSample_t, encUtil)
    AT(nvmlProcessUtilizationSample_t, decUtil)
    return 0;
}
