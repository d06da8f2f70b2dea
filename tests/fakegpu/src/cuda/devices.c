#include "driver.h"

#include <stdio.h>
#include <string.h>

uint64_t device_capacity(const struct device *device) {
    return state_capacity(&driver.attachment, device->state_index);
}

uint64_t device_used(const struct device *device) { return state_used(&driver.attachment, device->state_index); }

bool device_take(struct device *device, enum memory_kind kind, uint64_t bytes) {
    return state_take(&driver.attachment, device->state_index, kind, bytes);
}

void device_give(struct device *device, enum memory_kind kind, uint64_t bytes) {
    state_give(&driver.attachment, device->state_index, kind, bytes);
}

void device_note_requested(struct device *device, int64_t change) {
    struct slot_device *books = &driver.attachment.state->slot[driver.attachment.slot].device[device->state_index];
    atomic_fetch_add(&books->requested_bytes, (uint64_t)change);
}

CUdevice device_ordinal(const struct device *device) { return (CUdevice)(device - driver.device); }

/* Devices do not change after cuInit, so that reading them needs no lock. */
static CUresult check_as(const char *call, const void *out, CUdevice ordinal, struct device **device) {
    CUresult result = device_enter_as(call, ordinal, device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

#define check(out, ordinal, device) check_as(__func__, out, ordinal, device)

CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    struct device *device;
    CUresult result = check(dev, ordinal, &device);
    if (result == CUDA_SUCCESS) {
        *dev = ordinal;
    }
    return result;
}

CUresult cuDeviceGetCount(int *count) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *count = driver.device_count;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice dev) {
    struct device *device;
    CUresult result = check(name, dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)length, "%s", device->config.name);
    return CUDA_SUCCESS;
}

static void parse_uuid(const char *text, CUuuid *uuid) {
    text += strlen("GPU-");
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        text += *text == '-';
        sscanf(text, "%2x", &byte);
        uuid->bytes[i] = (char)byte;
        text += 2;
    }
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    struct device *device;
    CUresult result = check(uuid, dev, &device);
    if (result == CUDA_SUCCESS) {
        parse_uuid(device->config.uuid, uuid);
    }
    return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    struct device *device;
    CUresult result = check(uuid, dev, &device);
    if (result == CUDA_SUCCESS) {
        const struct device_config *config = &device->config;
        parse_uuid(config->mig_uuid[0] != '\0' ? config->mig_uuid : config->uuid, uuid);
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    struct device *device;
    CUresult result = check(bytes, dev, &device);
    if (result == CUDA_SUCCESS) {
        *bytes = device_capacity(device);
    }
    return result;
}

/* The first ABI's sizes have 32 bits and stop at the largest they can say. */
CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    struct device *device;
    CUresult result = check(bytes, dev, &device);
    if (result == CUDA_SUCCESS) {
        uint64_t capacity = device_capacity(device);
        *bytes = capacity > UINT32_MAX ? UINT32_MAX : (unsigned int)capacity;
    }
    return result;
}

static bool attribute_value(const struct device_config *device, CUdevice_attribute attribute, int *value) {
    switch (attribute) {
#define ATTRIBUTE(number, name, expression)                                                                            \
    case CU_DEVICE_ATTRIBUTE_##name:                                                                                   \
        *value = expression;                                                                                           \
        return true;
#include "device_attributes.def"
#undef ATTRIBUTE
    }
    return false;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
    struct device *device;
    CUresult result = check(value, dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return attribute_value(&device->config, attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice dev) {
    struct device *device;
    CUresult result = check(properties, dev, &device);
    if (result == CUDA_SUCCESS) {
        *properties = (CUdevprop){.maxThreadsPerBlock = 1024,
                                  .maxThreadsDim = {1024, 1024, 64},
                                  .maxGridSize = {2147483647, 65535, 65535},
                                  .sharedMemPerBlock = 49152,
                                  .totalConstantMemory = 65536,
                                  .SIMDWidth = 32,
                                  .memPitch = 2147483647,
                                  .regsPerBlock = 65536,
                                  .clockRate = (int)device->config.clock_mhz * 1000,
                                  .textureAlign = 512};
    }
    return result;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    struct device *device;
    CUresult result = check(minor == NULL ? NULL : major, dev, &device);
    if (result == CUDA_SUCCESS) {
        *major = (int)device->config.compute_major;
        *minor = (int)device->config.compute_minor;
    }
    return result;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice dev) {
    struct device *device;
    CUresult result = check(text, dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct device_config *config = &device->config;
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", config->pci_domain, config->pci_bus, config->pci_device);
    return CUDA_SUCCESS;
}

static CUresult find_address(CUdevice *dev, const char *text) {
    if (dev == NULL || text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned domain = 0, bus, slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (int i = 0; i < driver.device_count; i++) {
        const struct device_config *config = &driver.device[i].config;
        if (config->pci_domain == domain && config->pci_bus == bus && config->pci_device == slot) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text) {
    CUresult result = driver_enter();
    return result != CUDA_SUCCESS ? result : driver_leave(find_address(dev, text));
}
