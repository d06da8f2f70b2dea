/*
 * How busy a device is, as NVML tells it: not now, but of the last whole sample period. For a device that is a sixth of a
 * second, for processes a second, renewed four times a second. nvmlUtilization_t and nvmlDeviceGetProcessUtilization in
 * NVIDIA's nvml.h; products differ within 1/6 s to 1 s. On MIG both are not supported.
 */
#include "../common/clock.h"
#include "nvml.h"

#include <string.h>
#include <time.h>

static const uint64_t DEVICE_WINDOW_NS = 166666667, PROCESS_WINDOW_NS = 1000000000, PROCESS_RENEWAL_NS = 250000000;

static unsigned percent(uint64_t busy_ns, uint64_t window_ns) {
    return (unsigned)((busy_ns * 100 + window_ns / 2) / window_ns);
}

static bool is_mig(nvmlDevice_t device) { return device->parent != NULL || device->divided; }

/* The last moment at which samples were taken. */
static uint64_t sampled_at(uint64_t renewal_ns) { return clock_now_ns() / renewal_ns * renewal_ns; }

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t result = nvml_check(device, utilization);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (is_mig(device)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    uint64_t busy_ns = 0, end_ns = sampled_at(DEVICE_WINDOW_NS);
    if (nvml.timeline.file != NULL) {
        busy_ns = timeline_busy(&nvml.timeline, device->state_index[0], end_ns - DEVICE_WINDOW_NS, end_ns);
    }
    *utilization = (nvmlUtilization_t){.gpu = percent(busy_ns, DEVICE_WINDOW_NS)};
    return NVML_SUCCESS;
}

/* NVML's times are microseconds since 1970; the model's clock counts from its own beginning. */
static uint64_t stamp_us(uint64_t time_ns) {
    if (nvml.config.model_clock) {
        return time_ns / 1000;
    }
    struct timespec real, monotonic;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    int64_t offset_us = (real.tv_sec - monotonic.tv_sec) * 1000000 + (real.tv_nsec - monotonic.tv_nsec) / 1000;
    return (uint64_t)((int64_t)(time_ns / 1000) + offset_us);
}

/* One record for each process that worked in the window, if the window is newer than what was seen last. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen_us) {
    nvmlReturn_t result = nvml_check(device, count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (is_mig(device)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    static _Thread_local nvmlProcessUtilizationSample_t found[MAX_PROCESSES];
    unsigned total = 0;
    uint64_t end_ns = sampled_at(PROCESS_RENEWAL_NS);
    bool news = nvml.timeline.file != NULL && stamp_us(end_ns) > last_seen_us;
    int used = news ? (int)atomic_load(&nvml.attachment.state->slots_used) : 0;
    for (int slot = 0; slot < used; slot++) {
        uint64_t busy_ns;
        if (timeline_busy_for(&nvml.timeline, device->state_index[0], slot, end_ns - PROCESS_WINDOW_NS, end_ns,
                              &busy_ns) &&
            state_slot_lives(&nvml.attachment, slot)) {
            found[total++] = (nvmlProcessUtilizationSample_t){.pid = state_host_pid(&nvml.attachment, slot),
                                                              .timeStamp = stamp_us(end_ns),
                                                              .smUtil = percent(busy_ns, PROCESS_WINDOW_NS)};
        }
    }
    unsigned room = *count;
    *count = total;
    if (total == 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (samples == NULL || room < total) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(samples, found, total * sizeof *found);
    return NVML_SUCCESS;
}

static nvmlReturn_t idle_as(const char *call, nvmlDevice_t device, unsigned *busy, unsigned *period_us) {
    nvmlReturn_t result = nvml_check_as(call, device, period_us == NULL ? NULL : busy);
    if (result == NVML_SUCCESS) {
        *busy = 0;
        *period_us = (unsigned)(DEVICE_WINDOW_NS / 1000);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *busy, unsigned int *period_us) {
    return idle_as(__func__, device, busy, period_us);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *busy, unsigned int *period_us) {
    return idle_as(__func__, device, busy, period_us);
}
