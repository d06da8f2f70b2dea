#include "nvml.h"

/* Only data center cards from compute capability 8.0 on can be divided. */
static bool can_divide(nvmlDevice_t device) { return device->divided || device->config->compute_major >= 8; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t result = nvml_check(device, pending == NULL ? NULL : current);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (device->parent != NULL || !can_divide(device)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = *pending = device->divided;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    nvmlReturn_t result = nvml_check(device, count);
    if (result == NVML_SUCCESS) {
        *count = device->parent == NULL && can_divide(device) ? 7 : 0;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    nvmlReturn_t result = nvml_check(device, mig);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (unsigned i = 0; i < nvml.instances; i++) {
        if (nvml.instance[i].parent == device && nvml.instance[i].index == index) {
            *mig = &nvml.instance[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    nvmlReturn_t result = nvml_check(mig, device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (mig->parent == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = mig->parent;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    nvmlReturn_t result = nvml_check(device, is_mig);
    if (result == NVML_SUCCESS) {
        *is_mig = device->parent != NULL;
    }
    return result;
}

static nvmlReturn_t instance_id_as(const char *call, nvmlDevice_t device, unsigned int *id, unsigned value) {
    nvmlReturn_t result = nvml_check_as(call, device, id);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (device->parent == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *id = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    return instance_id_as(__func__, device, id, device == NULL ? 0 : device->index + 1);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) { return instance_id_as(__func__, device, id, 0); }
