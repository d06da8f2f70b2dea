/* What a container sees of a card through NVML: the same share as through CUDA, and its own processes. A program that never starts
 * CUDA, such as nvidia-smi, takes no slot. */
#include <stdlib.h>

#include "charge.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "own_processes.h"
#include "share.h"

static bool is_counted(void)
{
    const struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
    return mine && mine->attachment == COUNTED;
}

static unsigned region_index(const struct region_file *file, nvmlDevice_t device)
{
    char uuid[REGION_UUID_BYTES];
    if (!file || nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
        return DEVICE_NONE;
    return device_index_of_uuid((const char(*)[REGION_UUID_BYTES])file->hami.uuids, file->hami.device_num, uuid);
}

struct view {
    uint64_t limit;
    uint64_t used;
};

/* False: it cannot be known, a line said why. */
static bool look_at(nvmlDevice_t device, uint64_t card_total, struct view *view)
{
    struct sight sight;
    unsigned nvml_index = DEVICE_NONE;

    if (is_counted()) {
        unsigned index = region_index(container.region.file, device);
        if (index != DEVICE_NONE && device_is_visible(index)) {
            *view = (struct view){container_limit(index), charge_used(index)};
            return true;
        }
    }
    if (!container_look(&sight))
        return false;
    unsigned index = region_index(sight.file, device);
    nvml.nvmlDeviceGetIndex(device, &nvml_index);
    bool known = sight_limit(&sight, index, nvml_index, (struct card){.nvml_total = card_total}, &view->limit);
    own_processes(&sight, index, NULL, &view->used);
    container_look_away(&sight);
    return known;
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

/* NVML gives the node's PIDs and shows everybody's processes on the card. A container with a limit is shown its own, by the PIDs that
 * it knows, with what is charged to them. The region knows processes that compute; those that draw, and those that NVIDIA's MPS
 * serves, are not told apart by container, so none is shown. */
enum kind { COMPUTING, OTHERS };

struct listing {
    bool ask_driver; /* no limit: the driver's own list */
    nvmlReturn_t result;
    unsigned filled;
    struct own_process *list; /* to be freed */
};

static unsigned list_own(nvmlDevice_t device, struct own_process *list)
{
    struct sight sight;
    uint64_t sum;
    unsigned count = 0;
    if (list && container_look(&sight)) {
        count = own_processes(&sight, region_index(sight.file, device), list, &sum);
        container_look_away(&sight);
    }
    return count;
}

/* NVML's rule for the array: *count is its length, then what was used of it or is needed. */
static struct listing list_processes(enum kind kind, nvmlReturn_t driver_says, nvmlDevice_t device, unsigned int *count, bool has_array)
{
    struct listing listing = {.result = driver_says};
    struct view view;
    unsigned found = 0;

    if (driver_says != NVML_SUCCESS && driver_says != NVML_ERROR_INSUFFICIENT_SIZE)
        return listing;
    if (!look_at(device, 0, &view)) {
        listing.result = NVML_ERROR_NO_PERMISSION;
        return listing;
    }
    listing.ask_driver = view.limit == LIMIT_NONE;
    if (listing.ask_driver)
        return listing;
    if (kind == COMPUTING) {
        listing.list = malloc(REGION_SLOTS * sizeof(*listing.list));
        found = list_own(device, listing.list);
    }
    bool fits = found <= (has_array ? *count : 0);
    *count = found;
    listing.filled = fits ? found : 0;
    listing.result = fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
    return listing;
}

enum { WHOLE_CARD = -1 };
#define ENTRY_V1 {own.list[i].pid, own.list[i].bytes}
#define ENTRY_V2 {own.list[i].pid, own.list[i].bytes, (unsigned)WHOLE_CARD, (unsigned)WHOLE_CARD}

/* One function of NVML. The driver is asked first, for its errors, with no room in the array. */
#define LIST(kind, name, information, entry)                                                                                       \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, information *infos)                                            \
    {                                                                                                                              \
        unsigned none = 0;                                                                                                         \
        driver_find_nvml();                                                                                                        \
        nvmlReturn_t driver_says = nvml.name(device, infoCount ? &none : NULL, NULL);                                              \
        struct listing own = list_processes(kind, driver_says, device, infoCount, infos != NULL);                                  \
        for (unsigned i = 0; i < own.filled; i++)                                                                                  \
            infos[i] = (information)entry;                                                                                         \
        free(own.list);                                                                                                            \
        return own.ask_driver ? nvml.name(device, infoCount, infos) : own.result;                                                  \
    }

LIST(COMPUTING, nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, ENTRY_V1)
LIST(COMPUTING, nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, ENTRY_V2)
LIST(COMPUTING, nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, ENTRY_V2)
LIST(OTHERS, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, ENTRY_V1)
LIST(OTHERS, nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, ENTRY_V2)
LIST(OTHERS, nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, ENTRY_V2)
LIST(OTHERS, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, ENTRY_V1)
LIST(OTHERS, nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, ENTRY_V2)
LIST(OTHERS, nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, ENTRY_V2)

/* From CUDA 12.3 on, for Hopper and newer: all of this in one function. The driver is asked in the same way. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    driver_find_nvml();
    if (!plist)
        return nvml.nvmlDeviceGetRunningProcessDetailList(device, plist);
    if (plist->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessDetailList_t none = {.version = plist->version, .mode = plist->mode};
    nvmlReturn_t driver_says = nvml.nvmlDeviceGetRunningProcessDetailList(device, &none);
    bool computing = plist->mode == NVML_PROCESS_MODE_COMPUTE || plist->mode == NVML_PROCESS_MODE_ALL;
    struct listing own = list_processes(computing ? COMPUTING : OTHERS, driver_says, device, &plist->numProcArrayEntries, plist->procArray != NULL);
    for (unsigned i = 0; i < own.filled; i++)
        plist->procArray[i] = (nvmlProcessDetail_v1_t){own.list[i].pid, own.list[i].bytes, (unsigned)WHOLE_CARD, (unsigned)WHOLE_CARD, 0};
    free(own.list);
    return own.ask_driver ? nvml.nvmlDeviceGetRunningProcessDetailList(device, plist) : own.result;
}
