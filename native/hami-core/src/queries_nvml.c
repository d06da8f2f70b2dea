/* What a container sees of a card through NVML: the same share as through CUDA, and its own processes. A program that never starts
 * CUDA, such as nvidia-smi, takes no slot. */
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

/* NVML gives the node's PIDs and shows everybody's processes on the card. A container is shown its own, by the PIDs that it knows,
 * with what is charged to them. The driver is asked first, for its errors: `ask` with an array that is too small.
 * NVML's rule for the array: *count is its length, then what was used of it or is needed. */
enum { WHOLE_CARD = -1 };

static nvmlReturn_t list_processes(nvmlReturn_t driver_says, nvmlDevice_t device, unsigned int *count, unsigned room,
                                   struct own_process list[REGION_SLOTS])
{
    struct sight sight;
    uint64_t sum;
    if (driver_says != NVML_SUCCESS && driver_says != NVML_ERROR_INSUFFICIENT_SIZE)
        return driver_says;
    if (!container_look(&sight))
        return NVML_ERROR_NO_PERMISSION;
    *count = own_processes(&sight, region_index(sight.file, device), list, &sum);
    container_look_away(&sight);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_v1(nvmlReturn_t (*ask)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *), nvmlDevice_t device,
                            unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    struct own_process list[REGION_SLOTS];
    unsigned none = 0, room = count && infos ? *count : 0;
    nvmlReturn_t result = list_processes(ask(device, count ? &none : NULL, NULL), device, count, room, list);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].bytes};
    return result;
}

static nvmlReturn_t list_v2(nvmlReturn_t (*ask)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *), nvmlDevice_t device,
                            unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    struct own_process list[REGION_SLOTS];
    unsigned none = 0, room = count && infos ? *count : 0;
    nvmlReturn_t result = list_processes(ask(device, count ? &none : NULL, NULL), device, count, room, list);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v2_t){list[i].pid, list[i].bytes, (unsigned)WHOLE_CARD, (unsigned)WHOLE_CARD};
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v1_t *infos)
{
    driver_find_nvml();
    return list_v1(nvml.nvmlDeviceGetComputeRunningProcesses, device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v2_t *infos)
{
    driver_find_nvml();
    return list_v2(nvml.nvmlDeviceGetComputeRunningProcesses_v2, device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v2_t *infos)
{
    driver_find_nvml();
    return list_v2(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device, infoCount, infos);
}

/* The region knows processes that compute. Those that draw, and those that NVIDIA's MPS serves, are not told apart by container, so
 * none is shown. */
static nvmlReturn_t list_none(nvmlReturn_t driver_says, unsigned int *count)
{
    if (driver_says != NVML_SUCCESS && driver_says != NVML_ERROR_INSUFFICIENT_SIZE)
        return driver_says;
    *count = 0;
    return NVML_SUCCESS;
}

#define LIST_NONE(name, information)                                                                                               \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, information *infos)                                            \
    {                                                                                                                              \
        unsigned none = 0;                                                                                                         \
        (void)infos;                                                                                                               \
        driver_find_nvml();                                                                                                        \
        return list_none(nvml.name(device, infoCount ? &none : NULL, NULL), infoCount);                                            \
    }

LIST_NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST_NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST_NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
LIST_NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
