/* Who holds memory of a device: by host PIDs, whatever PID namespace asks, as NVML gives them. */
#include "nvml.h"

#include <string.h>

struct holder {
    unsigned pid;
    uint64_t bytes;
    unsigned instance; /* of a divided card */
};

static const unsigned NO_INSTANCE = 0xffffffff;

static bool holds(int slot, int device, uint64_t *bytes) {
    const struct state *state = nvml.attachment.state;
    *bytes = state_process_bytes(&nvml.attachment, device, slot);
    bool any = *bytes != 0 || atomic_load(&state->slot[slot].device[device].contexts) != 0;
    return any && state_slot_lives(&nvml.attachment, slot);
}

static unsigned find_holders(nvmlDevice_t device, struct holder holders[MAX_PROCESSES]) {
    unsigned count = 0;
    int used = (int)atomic_load(&nvml.attachment.state->slots_used);
    for (int part = 0; part < device->parts; part++) {
        unsigned instance = device->parent != NULL ? device->index + 1 : (unsigned)part + 1;
        bool whole = device->parent == NULL && !device->divided;
        for (int slot = 0; slot < used && count < MAX_PROCESSES; slot++) {
            uint64_t bytes;
            if (holds(slot, device->state_index[part], &bytes)) {
                holders[count++] = (struct holder){.pid = state_host_pid(&nvml.attachment, slot),
                                                   .bytes = bytes,
                                                   .instance = whole ? NO_INSTANCE : instance};
            }
        }
    }
    return count;
}

static nvmlReturn_t list_as(const char *call, nvmlDevice_t device, unsigned *count, void *out, size_t entry) {
    nvmlReturn_t result = nvml_check_as(call, device, count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    static _Thread_local struct holder holders[MAX_PROCESSES];
    unsigned found = find_holders(device, holders);
    unsigned room = *count;
    *count = found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (found > 0 && out == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < found; i++) {
        nvmlProcessInfo_t info = {.pid = holders[i].pid,
                                  .usedGpuMemory = holders[i].bytes,
                                  .gpuInstanceId = holders[i].instance,
                                  .computeInstanceId = holders[i].instance == NO_INSTANCE ? NO_INSTANCE : 0};
        memcpy((char *)out + i * entry, &info, entry); /* version 1 is the beginning of the later ones */
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t nobody_as(const char *call, nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = nvml_check_as(call, device, count);
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    return list_as(__func__, device, count, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return list_as(__func__, device, count, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    return list_as(__func__, device, count, infos, sizeof *infos);
}

/* Nobody draws, and there is no MPS server. */
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_v1_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v2_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos) {
    (void)infos;
    return nobody_as(__func__, device, count);
}
