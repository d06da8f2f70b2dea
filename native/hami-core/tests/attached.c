#define _GNU_SOURCE
#include "attached.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#include "../src/devices.h"
#include "../src/driver.h"
#include "../src/slot.h"
#include "harness.h"

enum { OTHER_PID_NAMESPACE = 1 }; /* than the node's */

CUdevice attached_current;

static CUresult device_count(int *count)
{
    *count = ATTACHED_CARDS;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x11 * (device + 1), sizeof(*uuid));
    return CUDA_SUCCESS;
}

static CUresult device_memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)16 << 30;
    return CUDA_SUCCESS;
}

static CUresult device_pci(char *text, int bytes, CUdevice device)
{
    (void)device;
    strncpy(text, "0000:00:04.0", (size_t)bytes);
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context)
{
    *context = (CUcontext)(uintptr_t)(0x1000 * (attached_current + 1));
    return CUDA_SUCCESS;
}

static CUresult current_device(CUdevice *device)
{
    *device = attached_current;
    return CUDA_SUCCESS;
}

static nvmlReturn_t begin_nvml(void)
{
    return NVML_SUCCESS;
}

/* A card's handle is one more than its number. */
static nvmlReturn_t card_by_uuid(const char *uuid, nvmlDevice_t *card)
{
    *card = (nvmlDevice_t)(uintptr_t)(uuid[4] - '0');
    return NVML_SUCCESS;
}

static nvmlReturn_t uuid_of_card(nvmlDevice_t card, char *uuid, unsigned bytes)
{
    CHECK(bytes >= REGION_UUID_BYTES);
    strcpy(uuid, container.region.file->hami.uuids[(uintptr_t)card - 1]);
    return NVML_SUCCESS;
}

static void use_driver(void)
{
    CHECK(dlopen(FAKEGPU "/libnvidia-ml.so.1", RTLD_NOW) != NULL && driver_find_nvml());
    cuda.cuDeviceGetCount = device_count;
    cuda.cuDeviceGet = device_get;
    cuda.cuDeviceGetUuid_v2 = uuid_of;
    cuda.cuDeviceTotalMem_v2 = device_memory;
    cuda.cuDeviceGetPCIBusId = device_pci;
    cuda.cuCtxGetCurrent = current_context;
    cuda.cuCtxGetDevice = current_device;
    nvml.nvmlInit_v2 = begin_nvml;
    nvml.nvmlDeviceGetHandleByUUID = card_by_uuid;
    nvml.nvmlDeviceGetUUID = uuid_of_card;
}

static void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

void attached_begin(void)
{
    char reason[REASON_BYTES];
    struct region_file *file;
    if (process) {
        munmap(process, sizeof(*process));
        munmap(container.region.file, sizeof(*container.region.file));
    }
    attached_current = 0;
    process = shared_memory(sizeof(*process));
    container.region.file = file = shared_memory(sizeof(*file));
    struct extension_slot *slot = &file->extension.slots[0];
    process->attachment = COUNTED;
    file->hami.device_num = ATTACHED_CARDS;
    strcpy(file->hami.uuids[0], "GPU-11111111-1111-1111-1111-111111111111");
    strcpy(file->hami.uuids[1], "GPU-22222222-2222-2222-2222-222222222222");
    file->hami.proc_num = 1;
    container.self = identity_of_self();
    container.self.pid_namespace = OTHER_PID_NAMESPACE;
    slot->state = SLOT_USED;
    slot->pid = container.self.pid;
    slot->start_time = container.self.start_time;
    slot->pid_namespace = container.self.pid_namespace;
    slot->image = container.self.image;
    slot->host = (uint64_t)slot_mark(slot) << 32 | ATTACHED_HOST_PID;
    use_driver();
    CHECK_EQUAL(devices_discover(), CUDA_SUCCESS);
    CHECK(devices_register(&container.region, NULL, reason));
}
