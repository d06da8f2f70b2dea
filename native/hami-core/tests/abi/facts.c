/* Prints sizes, offsets and values of the driver's ABI, by our declarations or by NVIDIA's: both must print the same. */
#include <stdio.h>
#ifdef OURS
#include "../../src/driver_abi.h"
#else
#include <stddef.h>
#include <stdint.h>
#include <cuda.h>
#endif

#define SIZE(type) printf("size of " #type " %zu\n", sizeof(type));
#define AT(type, field) printf(#type "." #field " at %zu\n", offsetof(type, field));
#define VALUE(name) printf(#name " %lld\n", (long long)(name));

int main(void)
{
    SIZE(CUresult)
    SIZE(CUdevice)
    SIZE(CUdeviceptr)
    SIZE(CUmemGenericAllocationHandle)
    SIZE(CUuuid)
    SIZE(CUlimit)
    SIZE(CUdevice_attribute)
    SIZE(CUjit_option)
    SIZE(CUmemAllocationHandleType)
    VALUE(CUDA_ERROR_INVALID_VALUE)
    VALUE(CUDA_ERROR_OUT_OF_MEMORY)
    VALUE(CUDA_ERROR_STUB_LIBRARY)
    VALUE(CUDA_ERROR_NOT_PERMITTED)
    VALUE(CUDA_ERROR_NOT_SUPPORTED)
    VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    VALUE(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
    VALUE(CU_MEM_ATTACH_GLOBAL)
    VALUE(CU_MEM_LOCATION_TYPE_DEVICE)
    VALUE(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    VALUE(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
    VALUE(CU_GRAPH_NODE_TYPE_GRAPH)
    VALUE(CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    VALUE(CU_STREAM_CAPTURE_STATUS_NONE)
    VALUE(CU_STREAM_CAPTURE_MODE_RELAXED)
    VALUE(CU_MEM_OPERATION_TYPE_MAP)
    VALUE(CUDA_ARRAY3D_LAYERED)
    VALUE(CUDA_ARRAY3D_CUBEMAP)
    VALUE(CUDA_ARRAY3D_SPARSE)
    VALUE(CUDA_ARRAY3D_DEFERRED_MAPPING)
    VALUE(CU_AD_FORMAT_UNSIGNED_INT8)
    VALUE(CU_AD_FORMAT_UNSIGNED_INT16)
    VALUE(CU_AD_FORMAT_UNSIGNED_INT32)
    VALUE(CU_AD_FORMAT_SIGNED_INT8)
    VALUE(CU_AD_FORMAT_SIGNED_INT16)
    VALUE(CU_AD_FORMAT_SIGNED_INT32)
    VALUE(CU_AD_FORMAT_HALF)
    VALUE(CU_AD_FORMAT_FLOAT)
    SIZE(CUmemLocation)
    AT(CUmemLocation, id)
    SIZE(CUmemAllocationProp)
    AT(CUmemAllocationProp, location)
    SIZE(CUmemPoolProps)
    AT(CUmemPoolProps, location)
    SIZE(CUDA_MEM_ALLOC_NODE_PARAMS)
    AT(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize)
    AT(CUDA_MEM_ALLOC_NODE_PARAMS, dptr)
    SIZE(CUDA_ARRAY_DESCRIPTOR)
    AT(CUDA_ARRAY_DESCRIPTOR, NumChannels)
    SIZE(CUDA_ARRAY3D_DESCRIPTOR)
    AT(CUDA_ARRAY3D_DESCRIPTOR, Flags)
    SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS)
    AT(CUDA_ARRAY_MEMORY_REQUIREMENTS, size)
    SIZE(CUarrayMapInfo)
    AT(CUarrayMapInfo, resource)
    AT(CUarrayMapInfo, memOperationType)
    AT(CUarrayMapInfo, memHandle)
    AT(CUarrayMapInfo, offset)
    SIZE(CUlaunchConfig)
    AT(CUlaunchConfig, hStream)
    AT(CUlaunchConfig, numAttrs)
    SIZE(CUDA_LAUNCH_PARAMS)
    AT(CUDA_LAUNCH_PARAMS, sharedMemBytes)
    AT(CUDA_LAUNCH_PARAMS, hStream)
    return 0;
}
