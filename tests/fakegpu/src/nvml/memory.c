#include "nvml.h"

static const unsigned MEMORY_VERSION_2 = sizeof(nvmlMemory_v2_t) | 2u << 24;

static uint64_t total_bytes(nvmlDevice_t device) {
    uint64_t sum = 0;
    for (int i = 0; i < device->parts; i++) {
        sum += nvml.attachment.state->device[device->state_index[i]].memory_bytes;
    }
    return sum;
}

static uint64_t reserved_bytes(nvmlDevice_t device) {
    uint64_t sum = 0;
    for (int i = 0; i < device->parts; i++) {
        sum += nvml.attachment.state->device[device->state_index[i]].reserved_bytes;
    }
    return sum;
}

static uint64_t used_bytes(nvmlDevice_t device) {
    uint64_t sum = 0;
    for (int i = 0; i < device->parts; i++) {
        sum += state_used(&nvml.attachment, device->state_index[i]);
    }
    uint64_t most = total_bytes(device) - reserved_bytes(device);
    return sum < most ? sum : most; /* what is asked for and not granted yet may show for an instant */
}

/* Version 1 counts what is reserved as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = nvml_check(device, memory);
    if (result == NVML_SUCCESS) {
        memory->total = total_bytes(device);
        memory->used = used_bytes(device) + reserved_bytes(device);
        memory->free = memory->total - memory->used;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = nvml_check(device, memory);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (memory->version != MEMORY_VERSION_2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memory->total = total_bytes(device);
    memory->reserved = reserved_bytes(device);
    memory->used = used_bytes(device);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t result = nvml_check(device, memory);
    if (result == NVML_SUCCESS) {
        *memory = (nvmlBAR1Memory_t){.bar1Total = 256u << 20, .bar1Free = 253u << 20, .bar1Used = 3u << 20};
    }
    return result;
}
