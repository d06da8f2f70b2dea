/* What a container sees of a card through NVML: the same share as through CUDA. A program that never starts CUDA, such as
 * nvidia-smi, takes no slot. */
#include "charge.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "share.h"

struct view {
    uint64_t limit;
    uint64_t used;
};

/* *view is the share of a card with these figures. False: it cannot be known, a line said why. */
static bool look_at(nvmlDevice_t device, uint64_t card_total, struct view *view)
{
    char uuid[REGION_UUID_BYTES];
    unsigned index = 0;
    const struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
    bool counted = mine && mine->attachment == COUNTED;

    *view = (struct view){LIMIT_NONE, 0};
    if (mine && mine->attachment == UNCOUNTED)
        return true;
    if (nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
        return false;
    if (counted) {
        const struct hami_region *region = &container.region.file->hami;
        index = device_index_of_uuid((const char(*)[REGION_UUID_BYTES])region->uuids, region->device_num, uuid);
        if (index != DEVICE_NONE && device_is_visible(index)) {
            *view = (struct view){container_limit(index), charge_used(index)};
            return true;
        }
    }
    if (nvml.nvmlDeviceGetIndex(device, &index) != NVML_SUCCESS)
        index = DEVICE_NONE;
    return container_peek(uuid, index, (struct card){.nvml_total = card_total}, &view->limit, &view->used);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct view view;
    driver_find_nvml();
    nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    if (!look_at(device, memory->total, &view))
        return NVML_ERROR_NO_PERMISSION;
    if (view.limit == LIMIT_NONE)
        return result;
    memory->free = share_free(view.limit, view.used, memory->free);
    memory->total = share_total(view.limit, memory->total);
    memory->used = view.used;
    return result;
}

/* Here total = reserved + free + used. What of the share others hold on the card is shown as reserved. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct view view;
    driver_find_nvml();
    nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (result != NVML_SUCCESS)
        return result;
    if (!look_at(device, memory->total, &view))
        return NVML_ERROR_NO_PERMISSION;
    if (view.limit == LIMIT_NONE)
        return result;
    memory->free = share_free(view.limit, view.used, memory->free);
    memory->total = share_total(view.limit, memory->total);
    memory->used = view.used;
    uint64_t shown = memory->free + memory->used;
    memory->reserved = memory->total > shown ? memory->total - shown : 0;
    return result;
}
