/* Overhead, on a card and an NVML of this file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/container.h"
#include "../src/devices.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "../src/memory/overhead.h"
#include "../src/nvml_cards.h"
#include "../src/slot.h"
#include "harness.h"
#include "stepping.h"
#include "world.h"

enum { CARDS = 2, PID = 4711 };

/* What a process and the one that steps through it see both. */
static struct shared {
    struct process process;
    uint64_t booked[CARDS]; /* what NVML has for the process */
    bool freed;
} *shared;

static CUdevice current;
static CUdeviceptr pointer;
static int say_when[2];

static CUresult device_count(int *count)
{
    *count = CARDS;
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
    *bytes = 16 * GIB;
    return CUDA_SUCCESS;
}

static CUresult device_pci(char *text, int bytes, CUdevice device)
{
    (void)device;
    strncpy(text, "0000:00:04.0", (size_t)bytes);
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context)
{
    *context = (CUcontext)(uintptr_t)(0x1000 * (current + 1));
    return CUDA_SUCCESS;
}

static CUresult current_device(CUdevice *device)
{
    *device = current;
    return CUDA_SUCCESS;
}

static CUresult create_context(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    shared->booked[device] += CONTEXT;
    current = device;
    return current_context(context);
}

static CUresult load_module(CUmodule *module, const void *image)
{
    (void)image;
    shared->booked[current] += 64 * MIB;
    *module = (CUmodule)(uintptr_t)0x5000;
    return CUDA_SUCCESS;
}

/* The driver takes whole pieces of 2 MiB. */
static CUresult allocate(CUdeviceptr *made, size_t bytes)
{
    shared->booked[current] += charge_whole_pieces(bytes);
    *made = 0x7000000;
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr freed)
{
    (void)freed;
    __atomic_fetch_sub(&shared->booked[0], 4 * MIB, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

static nvmlReturn_t begin_nvml(void)
{
    return NVML_SUCCESS;
}

static nvmlReturn_t card_by_uuid(const char *uuid, nvmlDevice_t *card)
{
    *card = (nvmlDevice_t)(uintptr_t)(uuid[4] - '0');
    return NVML_SUCCESS;
}

/* Another process is there too. */
static nvmlReturn_t list_processes(nvmlDevice_t card, unsigned *count, nvmlProcessInfo_v2_t *list)
{
    *count = 2;
    list[0] = (nvmlProcessInfo_v2_t){.pid = PID - 1, .usedGpuMemory = GIB};
    list[1] = (nvmlProcessInfo_v2_t){.pid = PID,
                                     .usedGpuMemory = __atomic_load_n(&shared->booked[(uintptr_t)card - 1], __ATOMIC_SEQ_CST)};
    return NVML_SUCCESS;
}

/* The third form as drivers 535.54 and 535.86 have it. */
static nvmlReturn_t list_in_larger_entries(nvmlDevice_t card, unsigned *count, nvmlProcessInfo_t *list)
{
    enum { ENTRY = sizeof(*list) + 8 };
    nvmlProcessInfo_v2_t entries[2];
    list_processes(card, count, entries);
    for (unsigned i = 0; i < *count; i++)
        memcpy((char *)list + i * ENTRY, &entries[i], sizeof(entries[i]));
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
    cuda.cuDeviceGetAttribute = device_attribute;
    cuda.cuCtxGetCurrent = current_context;
    cuda.cuCtxGetDevice = current_device;
    cuda.cuCtxCreate_v2 = create_context;
    cuda.cuModuleLoadData = load_module;
    cuda.cuMemAlloc_v2 = allocate;
    cuda.cuMemFree_v2 = release;
    nvml.nvmlInit_v2 = begin_nvml;
    nvml.nvmlDeviceGetHandleByUUID = card_by_uuid;
    nvml.nvmlDeviceGetComputeRunningProcesses_v2 = list_processes;
    nvml.nvmlDeviceGetComputeRunningProcesses_v3 = list_in_larger_entries;
}

/* A process of a container without a limit, whose PID on the node a monitor has told. */
static void begin(void)
{
    char reason[REASON_BYTES];
    struct region_file *file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(file != MAP_FAILED && shared != MAP_FAILED);
    use_driver();
    shared->process.attachment = COUNTED;
    process = &shared->process;
    container.region.file = file;
    file->hami.device_num = CARDS;
    strcpy(file->hami.uuids[0], "GPU-11111111-1111-1111-1111-111111111111");
    strcpy(file->hami.uuids[1], "GPU-22222222-2222-2222-2222-222222222222");
    file->extension.slots[0].host = (uint64_t)slot_mark(&file->extension.slots[0]) << 32 | PID;
    CHECK_EQUAL(devices_discover(), CUDA_SUCCESS);
    CHECK(devices_register(&container.region, NULL, reason));
}

static void end(void)
{
    munmap(container.region.file, sizeof(*container.region.file));
    munmap(shared, sizeof(*shared));
}

/* Code may be loaded into a context that was made by a way that is not wrapped. */
TEST(overhead_is_its_cards_also_without_a_context_that_is_known)
{
    CUmodule module;
    begin();
    current = 1;
    shared->booked[1] = CONTEXT;
    CHECK_EQUAL(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(0), 0);
    CHECK_EQUAL(charge_held(1), 64 * MIB);
    const struct hami_used *used = container.region.file->hami.procs[0].used;
    CHECK_EQUAL(used[1].context_size, 64 * MIB);
    CHECK_EQUAL(used[1].data_size, 0);
}

TEST(a_process_is_found_whatever_the_size_of_the_newest_entries)
{
    uint64_t bytes;
    begin();
    shared->booked[0] = CONTEXT;
    CHECK(nvml_process_memory(device_uuid(0), PID, &bytes));
    CHECK_EQUAL(bytes, CONTEXT);
    CHECK(!nvml_process_memory(device_uuid(0), PID + 1, &bytes));
}

static void *free_when_told(void *nothing)
{
    char byte;
    CHECK(read(say_when[0], &byte, 1) == 1);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    __atomic_store_n(&shared->freed, true, __ATOMIC_RELEASE);
    return nothing;
}

static void hold_memory(void)
{
    CUcontext context;
    pthread_t thread;
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 3 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(charge_held(0), CONTEXT + 3 * MIB);
    CHECK(pthread_create(&thread, NULL, free_when_told, NULL) == 0);
}

static void settle(void)
{
    overhead_settle(0);
}

static bool is_waited_for(const struct lock *lock)
{
    return __atomic_load_n(&lock->word, __ATOMIC_ACQUIRE) == 2;
}

/* Until it is done, or waits for who is stopped. */
static void have_it_freed(void)
{
    CHECK(write(say_when[1], "", 1) == 1);
    while (!__atomic_load_n(&shared->freed, __ATOMIC_ACQUIRE) && !is_waited_for(&shared->process.lanes[0]) &&
           !is_waited_for(&shared->process.holdings.overhead[0].lock))
        usleep(20);
}

/* An allocation of 3 MiB takes two whole pieces of the card, and while a refusal finds the rest of those another thread frees them. */
TEST(rounding_that_is_freed_at_any_instruction_of_a_look_for_it_is_not_found)
{
    bool more = true;
    unsigned long instruction = 0;
    CHECK(pipe(say_when) == 0);
    for (; more; instruction++) {
        begin();
        struct stepped looking = stepped(hold_memory, settle, instruction);
        have_it_freed();
        stepped_go_on(&looking);
        while (!__atomic_load_n(&shared->freed, __ATOMIC_ACQUIRE))
            usleep(20);
        if (charge_held(0) != CONTEXT)
            check_failed(__FILE__, __LINE__, "freed after instruction %lu of a look: %llu bytes too much are charged", instruction,
                         (unsigned long long)(charge_held(0) - CONTEXT));
        more = !looking.ended;
        stepped_kill(&looking);
        end();
    }
    CHECK(instruction > 200);
}
