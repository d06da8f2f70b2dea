/* NVML's types, under the names of NVIDIA's nvml.h and laid out like them (tests/test_abi.py compares). */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef enum nvmlReturn_enum {
#define ERROR(code, name, text) NVML_##name = code,
#include "errors.def"
#undef ERROR
} nvmlReturn_t;

typedef unsigned int nvmlEnableState_t, nvmlTemperatureSensors_t, nvmlClockType_t, nvmlPstates_t, nvmlBrandType_t,
    nvmlComputeMode_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlClockId_t, nvmlGpuOperationMode_t,
    nvmlTemperatureThresholds_t, nvmlDeviceArchitecture_t;

enum { NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE = 32, NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE = 16 };

typedef struct nvmlPciInfo_st {
    char busIdLegacy[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
} nvmlPciInfo_t;

typedef struct nvmlUtilization_st {
    unsigned int gpu;
    unsigned int memory;
} nvmlUtilization_t;

typedef struct nvmlProcessUtilizationSample_st {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil;
    unsigned int memUtil;
    unsigned int encUtil;
    unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct nvmlMemory_st {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_st {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

typedef struct nvmlBAR1Memory_st {
    unsigned long long bar1Total;
    unsigned long long bar1Free;
    unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef struct nvmlProcessInfo_v1_st {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct nvmlProcessInfo_v2_st {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t, nvmlProcessInfo_t;
