/* Overhead, on a card and an NVML of this file. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/devices.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "../src/memory/overhead.h"
#include "../src/nvml_cards.h"
#include "attached.h"
#include "harness.h"
#include "stepping.h"
#include "world.h"

/* What the process of a test and the one that steps through it see both. */
static struct shared {
    uint64_t booked[ATTACHED_CARDS]; /* what NVML has for the process */
    bool freed;
} *shared;

static CUdeviceptr pointer;
static int say_when[2];

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}

static CUresult create_context(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    shared->booked[device] += CONTEXT;
    *context = (CUcontext)(uintptr_t)(0x1000 * (device + 1));
    return CUDA_SUCCESS;
}

static CUresult load_module(CUmodule *module, const void *image)
{
    (void)image;
    shared->booked[attached_current] += 64 * MIB;
    *module = (CUmodule)(uintptr_t)0x5000;
    return CUDA_SUCCESS;
}

/* The driver takes whole pieces of 2 MiB. */
static CUresult allocate(CUdeviceptr *made, size_t bytes)
{
    shared->booked[attached_current] += charge_whole_pieces(bytes);
    *made = 0x7000000;
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr freed)
{
    (void)freed;
    __atomic_fetch_sub(&shared->booked[0], 4 * MIB, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

/* Another process is there too. */
static nvmlReturn_t list_processes(nvmlDevice_t card, unsigned *count, nvmlProcessInfo_v2_t *list)
{
    *count = 2;
    list[0] = (nvmlProcessInfo_v2_t){.pid = ATTACHED_HOST_PID - 1, .usedGpuMemory = GIB};
    list[1] = (nvmlProcessInfo_v2_t){.pid = ATTACHED_HOST_PID,
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

static void begin(void)
{
    if (!shared)
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    memset(shared, 0, sizeof(*shared));
    attached_begin();
    cuda.cuDeviceGetAttribute = device_attribute;
    cuda.cuCtxCreate_v2 = create_context;
    cuda.cuModuleLoadData = load_module;
    cuda.cuMemAlloc_v2 = allocate;
    cuda.cuMemFree_v2 = release;
    nvml.nvmlDeviceGetComputeRunningProcesses_v2 = list_processes;
    nvml.nvmlDeviceGetComputeRunningProcesses_v3 = list_in_larger_entries;
}

/* Code may be loaded into a context that was made by a way that is not wrapped. */
TEST(overhead_is_its_cards_also_without_a_context_that_is_known)
{
    CUmodule module;
    begin();
    attached_current = 1;
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
    CHECK(nvml_process_memory(device_uuid(0), ATTACHED_HOST_PID, &bytes));
    CHECK_EQUAL(bytes, CONTEXT);
    CHECK(!nvml_process_memory(device_uuid(0), ATTACHED_HOST_PID + 1, &bytes));
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
    while (!__atomic_load_n(&shared->freed, __ATOMIC_ACQUIRE) && !is_waited_for(&process->lanes[0]) &&
           !is_waited_for(&process->holdings.overhead[0].lock))
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
    }
    CHECK(instruction > 200);
}
