/* Readings that do not change: a cool card at rest. */
#include "nvml.h"

enum { CELSIUS = 40, POWER_MW = 27000, POWER_LIMIT_MW = 70000, MEMORY_CLOCK_MHZ = 5001, BRAND_TESLA = 2, PSTATE = 0 };

static nvmlReturn_t reading_as(const char *call, nvmlDevice_t device, unsigned int *out, unsigned value) {
    nvmlReturn_t result = nvml_check_as(call, device, out);
    if (result == NVML_SUCCESS) {
        *out = value;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    return sensor != 0 ? NVML_ERROR_INVALID_ARGUMENT : reading_as(__func__, device, celsius, CELSIUS);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    return reading_as(__func__, device, milliwatts, POWER_MW);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return reading_as(__func__, device, milliwatts, POWER_LIMIT_MW);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return reading_as(__func__, device, milliwatts, POWER_LIMIT_MW);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
    return reading_as(__func__, device, (unsigned int *)state, PSTATE);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    enum { MEMORY = 2, VIDEO = 3 };
    nvmlReturn_t result = nvml_check(device, mhz);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (type > VIDEO) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *mhz = type == MEMORY ? MEMORY_CLOCK_MHZ : device->config->clock_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return reading_as(__func__, device, (unsigned int *)mode, 1);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active) {
    return reading_as(__func__, device, (unsigned int *)active, 0);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    return reading_as(__func__, device, (unsigned int *)mode, 0);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
    return reading_as(__func__, device, (unsigned int *)brand, BRAND_TESLA);
}
