#include "nvml_cards.h"

#include <string.h>

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
