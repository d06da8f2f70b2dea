#include "nvml.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t result = nvml_ready(count);
    if (result == NVML_SUCCESS) {
        *count = nvml.cards;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t result = nvml_ready(device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (index >= nvml.cards) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = &nvml.card[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = nvml_ready(uuid == NULL ? NULL : device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (unsigned i = 0; i < nvml.cards; i++) {
        if (strcmp(nvml.card[i].config->uuid, uuid) == 0) {
            *device = &nvml.card[i];
            return NVML_SUCCESS;
        }
    }
    for (unsigned i = 0; i < nvml.instances; i++) {
        if (strcmp(nvml.instance[i].config->mig_uuid, uuid) == 0) {
            *device = &nvml.instance[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    nvmlReturn_t result = nvml_ready(bus_id == NULL ? NULL : device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    unsigned domain = 0, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2) {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
    }
    for (unsigned i = 0; i < nvml.cards; i++) {
        const struct device_config *config = nvml.card[i].config;
        if (config->pci_domain == domain && config->pci_bus == bus && config->pci_device == slot) {
            *device = &nvml.card[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    nvmlReturn_t result = nvml_check(device, index);
    if (result == NVML_SUCCESS) {
        *index = device->index;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    nvmlReturn_t result = nvml_check(device, minor);
    if (result == NVML_SUCCESS) {
        *minor = device->parent != NULL ? device->parent->index : device->index;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    nvmlReturn_t result = nvml_check(device, name);
    return result != NVML_SUCCESS ? result : nvml_text(name, length, device->config->name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    nvmlReturn_t result = nvml_check(device, uuid);
    if (result != NVML_SUCCESS) {
        return result;
    }
    return nvml_text(uuid, length, device->parent != NULL ? device->config->mig_uuid : device->config->uuid);
}

static void write_bus_ids(nvmlDevice_t device, nvmlPciInfo_t *pci, bool with_long_id) {
    const struct device_config *config = device->config;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", config->pci_domain & 0xffff,
             config->pci_bus & 0xff, config->pci_device & 0xff);
    pci->domain = config->pci_domain;
    pci->bus = config->pci_bus;
    pci->device = config->pci_device;
    pci->pciDeviceId = 0x1EB810DE;
    pci->pciSubSystemId = 0x12A210DE;
    if (with_long_id) {
        snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", config->pci_domain, config->pci_bus,
                 config->pci_device);
    }
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t result = nvml_check(device, pci);
    if (result == NVML_SUCCESS) {
        write_bus_ids(device, pci, true);
    }
    return result;
}

/* The older structures end before busId. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t result = nvml_check(device, pci);
    if (result == NVML_SUCCESS) {
        write_bus_ids(device, pci, false);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t result = nvml_check(device, minor == NULL ? NULL : major);
    if (result == NVML_SUCCESS) {
        *major = (int)device->config->compute_major;
        *minor = (int)device->config->compute_minor;
    }
    return result;
}
