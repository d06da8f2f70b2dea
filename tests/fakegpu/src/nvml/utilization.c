/* How busy a device is. Nothing runs on these cards yet, so all are idle. */
#include "nvml.h"

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t result = nvml_check(device, utilization);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (device->parent != NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *utilization = (nvmlUtilization_t){.gpu = 0, .memory = 0};
    return NVML_SUCCESS;
}

static nvmlReturn_t idle_as(const char *call, nvmlDevice_t device, unsigned *percent, unsigned *period_us) {
    nvmlReturn_t result = nvml_check_as(call, device, period_us == NULL ? NULL : percent);
    if (result == NVML_SUCCESS) {
        *percent = 0;
        *period_us = 167000;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return idle_as(__func__, device, percent, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    return idle_as(__func__, device, percent, period_us);
}
