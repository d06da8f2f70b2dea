/* Prints sizes, offsets and values of NVML's ABI, by our declarations (of this NVML_API_VERSION) or by NVIDIA's: both must print the
 * same. */
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
#if NVML_API_VERSION >= 12
    VALUE(NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
#endif
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
#if NVML_API_VERSION >= 13
    VALUE(NVML_PROCESS_MODE_COMPUTE)
    VALUE(NVML_PROCESS_MODE_ALL)
#endif
#if NVML_API_VERSION >= 12
    SIZE(nvmlProcessDetail_v1_t)
    AT(nvmlProcessDetail_v1_t, pid)
    AT(nvmlProcessDetail_v1_t, usedGpuMemory)
    AT(nvmlProcessDetail_v1_t, gpuInstanceId)
    AT(nvmlProcessDetail_v1_t, computeInstanceId)
    AT(nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory)
    SIZE(nvmlProcessDetailList_t)
    AT(nvmlProcessDetailList_t, mode)
    AT(nvmlProcessDetailList_t, numProcArrayEntries)
    AT(nvmlProcessDetailList_t, procArray)
    VALUE(nvmlProcessDetailList_v1)
#endif
    SIZE(nvmlProcessUtilizationSample_t)
    AT(nvmlProcessUtilizationSample_t, pid)
    AT(nvmlProcessUtilizationSample_t, timeStamp)
    AT(nvmlProcessUtilizationSample_t, smUtil)
    AT(nvmlProcessUtilizationSample_t, memUtil)
    AT(nvmlProcessUtilizationSample_t, encUtil)
    AT(nvmlProcessUtilizationSample_t, decUtil)
    return 0;
}
