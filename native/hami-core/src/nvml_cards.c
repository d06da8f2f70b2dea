#include "nvml_cards.h"

#include <stdlib.h>

#include "driver.h"

static bool read_card(unsigned index, struct nvml_card *card)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;

    *card = (struct nvml_card){.total = 0};
    if (nvml.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS ||
        nvml.nvmlDeviceGetUUID(device, card->uuid, sizeof(card->uuid)) != NVML_SUCCESS)
        return false;
    if (nvml.nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS)
        card->total = memory.total;
    return true;
}

unsigned nvml_cards(struct nvml_card cards[REGION_DEVICES])
{
    unsigned count = 0, read = 0;

    if (!driver_load_nvml() || nvml.nvmlInit_v2() != NVML_SUCCESS)
        return 0;
    if (nvml.nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS)
        while (read < count && read < REGION_DEVICES && read_card(read, &cards[read]))
            read++;
    nvml.nvmlShutdown();
    return read;
}

static bool find_process(nvmlDevice_t device, uint32_t pid, uint64_t *bytes)
{
    enum { ROOM = 1024 }; /* more processes than that on one card are not found */
    nvmlProcessInfo_v2_t *list = malloc(ROOM * sizeof(*list));
    unsigned count = ROOM;
    bool found = false;

    *bytes = 0;
    if (!list)
        return false;
    /* The second form tells the same as the third, and its entries have the same size in all drivers. */
    nvmlReturn_t result = nvml.nvmlDeviceGetComputeRunningProcesses_v2(device, &count, list);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND)
        result = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
        if (list[i].pid == pid && list[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE_ULL) {
            *bytes += list[i].usedGpuMemory;
            found = true;
        }
    }
    free(list);
    return found;
}

bool nvml_process_memory(const char *uuid, uint32_t pid, uint64_t *bytes)
{
    nvmlDevice_t device;
    return driver_begin_nvml() && nvml.nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS && find_process(device, pid, bytes);
}
