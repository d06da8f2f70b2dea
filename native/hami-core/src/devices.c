#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "nvml_cards.h"

enum { CUDA_DEVICES = 128, PCI_ID_BYTES = 32 };

static struct device {
    CUdevice handle;
    unsigned index;
    uint64_t total;
    char uuid[REGION_UUID_BYTES];
    char pci[PCI_ID_BYTES];
} devices[CUDA_DEVICES];
static unsigned devices_found;

static CUresult read_uuid(CUdevice device, char *text)
{
    CUuuid uuid, card;
    size_t at;
    /* The first version gives the card's UUID for a MIG instance. */
    CUresult result = cuda.cuDeviceGetUuid_v2(&uuid, device), first = cuda.cuDeviceGetUuid(&card, device);
    bool instance = result == CUDA_SUCCESS && first == CUDA_SUCCESS && memcmp(&uuid, &card, sizeof(uuid)) != 0;
    if (result != CUDA_SUCCESS) {
        uuid = card;
        result = first;
    }
    if (result != CUDA_SUCCESS)
        return result;
    at = (size_t)snprintf(text, REGION_UUID_BYTES, "%s-", instance ? "MIG" : "GPU");
    for (unsigned i = 0; i < sizeof(uuid.bytes); i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        at += (size_t)snprintf(text + at, REGION_UUID_BYTES - at, "%s%02x", dash ? "-" : "", (unsigned char)uuid.bytes[i]);
    }
    return CUDA_SUCCESS;
}

static CUresult read_device(int ordinal, struct device *device)
{
    size_t total;
    CUresult result = cuda.cuDeviceGet(&device->handle, ordinal);
    if (result == CUDA_SUCCESS)
        result = read_uuid(device->handle, device->uuid);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDeviceTotalMem_v2(&total, device->handle);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDeviceGetPCIBusId(device->pci, sizeof(device->pci), device->handle);
    if (result == CUDA_SUCCESS) {
        device->total = total;
        device->index = DEVICE_NONE;
    }
    return result;
}

CUresult devices_discover(void)
{
    int count;
    CUresult result = cuda.cuDeviceGetCount(&count);

    devices_found = 0;
    for (int i = 0; result == CUDA_SUCCESS && i < count && i < CUDA_DEVICES; i++) {
        result = read_device(i, &devices[i]);
        if (result == CUDA_SUCCESS)
            devices_found++;
    }
    return result;
}

unsigned device_index_of_uuid(const char (*uuids)[REGION_UUID_BYTES], uint64_t count, const char *uuid)
{
    for (unsigned i = 0; i < count && i < REGION_DEVICES; i++)
        if (strncmp(uuids[i], uuid, REGION_UUID_BYTES) == 0)
            return i;
    return DEVICE_NONE;
}

static uint64_t registered(const struct region_file *file)
{
    uint64_t count = __atomic_load_n(&file->hami.device_num, __ATOMIC_ACQUIRE);
    return count < REGION_DEVICES ? count : REGION_DEVICES;
}

/* True: every device of CUDA is there. */
static bool find_all(const struct region_file *file)
{
    bool all = true;
    for (unsigned i = 0; i < devices_found; i++) {
        devices[i].index = device_index_of_uuid(file->hami.uuids, registered(file), devices[i].uuid);
        all &= devices[i].index != DEVICE_NONE;
    }
    return all;
}

static bool append(struct region_file *file, const char *uuid, device_stamp *stamp, char *reason)
{
    unsigned index = (unsigned)registered(file);
    if (index == REGION_DEVICES) {
        snprintf(reason, REASON_BYTES, "more than %d devices", REGION_DEVICES);
        return false;
    }
    if (!stamp(file, index, reason))
        return false;
    snprintf(file->hami.uuids[index], REGION_UUID_BYTES, "%s", uuid);
    __atomic_store_n(&file->hami.device_num, index + 1, __ATOMIC_RELEASE);
    return true;
}

/* NVML's order is that of the PCI addresses; without NVML, this is its order among the devices that CUDA shows. */
static const struct device *next_missing(void)
{
    const struct device *next = NULL;
    for (unsigned i = 0; i < devices_found; i++)
        if (devices[i].index == DEVICE_NONE && (!next || strcmp(devices[i].pci, next->pci) < 0))
            next = &devices[i];
    return next;
}

static bool register_all(struct region_file *file, device_stamp *stamp, char *reason)
{
    struct nvml_card cards[REGION_DEVICES];
    unsigned count = nvml_cards(cards);
    const struct device *missing;

    for (unsigned i = 0; i < count; i++) {
        unsigned index = device_index_of_uuid(file->hami.uuids, registered(file), cards[i].uuid);
        if (index == DEVICE_NONE) {
            index = (unsigned)registered(file);
            if (!append(file, cards[i].uuid, stamp, reason))
                return false;
        }
        file->extension.devices[index].card_total = cards[i].total;
    }
    while (!find_all(file)) {
        missing = next_missing();
        if (!append(file, missing->uuid, stamp, reason))
            return false;
    }
    for (unsigned i = 0; i < devices_found; i++)
        file->extension.devices[devices[i].index].cuda_total = devices[i].total;
    return true;
}

bool devices_register(struct region *region, device_stamp *stamp, char *reason)
{
    if (find_all(region->file))
        return true;
    if (!region_gate(region, true, reason))
        return false;
    bool done = find_all(region->file) || register_all(region->file, stamp, reason);
    region_gate_drop(region);
    return done;
}

static const struct device *device_at(unsigned index)
{
    for (unsigned i = 0; i < devices_found; i++)
        if (devices[i].index == index)
            return &devices[i];
    return NULL;
}

bool device_is_visible(unsigned index)
{
    return device_at(index) != NULL;
}

CUdevice device_handle(unsigned index)
{
    return device_at(index)->handle;
}

const char *device_uuid(unsigned index)
{
    return device_at(index)->uuid;
}

/* The container can write the region; what CUDA itself says bounds what it may say there. */
static bool plausible(uint64_t card_total, uint64_t cuda_total)
{
    return card_total >= cuda_total && card_total <= cuda_total + cuda_total / 16 + 256 * MIB;
}

struct card devices_card(const struct region_file *file, unsigned index)
{
    const struct device *device = device_at(index);
    struct card card = {file->extension.devices[index].card_total, device ? device->total : 0};
    struct nvml_card cards[REGION_DEVICES];

    if (!device || card.nvml_total == 0 || plausible(card.nvml_total, card.cuda_total))
        return card;
    card.nvml_total = 0;
    for (unsigned i = 0, count = nvml_cards(cards); i < count; i++)
        if (strcmp(cards[i].uuid, device->uuid) == 0)
            card.nvml_total = cards[i].total;
    return card;
}

unsigned device_index(CUdevice device)
{
    for (unsigned i = 0; i < devices_found; i++)
        if (devices[i].handle == device)
            return devices[i].index;
    return DEVICE_NONE;
}
