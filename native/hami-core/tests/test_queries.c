/* Queries that the fake GPU does not answer, or not with more than it has: by a driver and an NVML of this file. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../src/driver.h"
#include "../src/hooks.h"
#include "../src/own_path.h"
#include "attached.h"
#include "harness.h"
#include "world.h"

/* Three processes on the card, of which one is ours, by the node's PIDs. */
static nvmlReturn_t list_all(nvmlDevice_t card, nvmlProcessDetailList_t *list)
{
    enum { THERE = 3 };
    (void)card;
    if (!list)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool fits = list->numProcArrayEntries >= THERE;
    list->numProcArrayEntries = THERE;
    for (unsigned i = 0; fits && i < THERE; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = ATTACHED_HOST_PID + i, .usedGpuMemory = GIB};
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static void begin(uint64_t limit)
{
    static struct world world;
    world = world_make();
    attached_begin();
    own_file_executed_as(world.library);
    snprintf(container.region.path, sizeof(container.region.path), "%s/usage.cache", world.directory);
    container.region.file->hami.limit[0] = limit;
    nvml.nvmlDeviceGetRunningProcessDetailList = list_all;
}

static nvmlProcessDetailList_t list(unsigned mode, unsigned room, nvmlProcessDetail_v1_t *entries, nvmlReturn_t wanted)
{
    nvmlProcessDetailList_t asked = {nvmlProcessDetailList_v1, mode, room, entries};
    CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList((nvmlDevice_t)1, &asked), wanted);
    return asked;
}

TEST(the_detailed_list_of_processes_is_the_containers)
{
    nvmlProcessDetail_v1_t entries[4];
    struct charge charge;
    begin(4 * GIB);
    CHECK_EQUAL(list(NVML_PROCESS_MODE_COMPUTE, 0, NULL, NVML_SUCCESS).numProcArrayEntries, 0);
    CHECK(charge_try(&charge, (struct payer){0, NULL}, CHARGE_DATA, 300 * MIB));
    CHECK_EQUAL(list(NVML_PROCESS_MODE_COMPUTE, 0, NULL, NVML_ERROR_INSUFFICIENT_SIZE).numProcArrayEntries, 1);
    CHECK_EQUAL(list(NVML_PROCESS_MODE_ALL, 4, entries, NVML_SUCCESS).numProcArrayEntries, 1);
    CHECK_EQUAL(entries[0].pid, getpid());
    CHECK_EQUAL(entries[0].usedGpuMemory, 300 * MIB);
    CHECK_EQUAL(entries[0].gpuInstanceId, UINT32_MAX);
    CHECK_EQUAL(entries[0].usedGpuCcProtectedMemory, 0);
    /* Processes that draw are not told apart by container. */
    CHECK_EQUAL(list(1, 4, entries, NVML_SUCCESS).numProcArrayEntries, 0);
}

TEST(the_detailed_list_of_processes_fails_as_the_drivers_does)
{
    nvmlProcessDetail_v1_t entries[4];
    nvmlProcessDetailList_t unknown = {2u << 24 | sizeof(unknown), NVML_PROCESS_MODE_COMPUTE, 4, entries};
    begin(4 * GIB);
    CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList((nvmlDevice_t)1, NULL), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(nvmlDeviceGetRunningProcessDetailList((nvmlDevice_t)1, &unknown), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

TEST(without_a_limit_the_detailed_list_of_processes_is_the_drivers)
{
    nvmlProcessDetail_v1_t entries[4];
    begin(0);
    CHECK_EQUAL(list(NVML_PROCESS_MODE_COMPUTE, 4, entries, NVML_SUCCESS).numProcArrayEntries, 3);
    CHECK_EQUAL(entries[2].pid, ATTACHED_HOST_PID + 2);
    CHECK_EQUAL(list(NVML_PROCESS_MODE_COMPUTE, 2, entries, NVML_ERROR_INSUFFICIENT_SIZE).numProcArrayEntries, 3);
}

/* Of 32 bits; a card with more says the largest number. */
static CUresult info(unsigned *left, unsigned *total)
{
    *left = *total = UINT32_MAX;
    return CUDA_SUCCESS;
}

static CUresult total_of(unsigned *total, CUdevice device)
{
    (void)device;
    *total = UINT32_MAX;
    return CUDA_SUCCESS;
}

TEST(the_first_forms_of_queries_show_a_share_that_fits_into_them)
{
    unsigned left, total;
    struct charge charge;
    begin(2 * GIB);
    cuda.cuMemGetInfo = info;
    cuda.cuDeviceTotalMem = total_of;
    CHECK(charge_try(&charge, (struct payer){0, NULL}, CHARGE_DATA, 300 * MIB));
    CHECK_EQUAL(cuMemGetInfo(&left, &total), CUDA_SUCCESS);
    CHECK_EQUAL(left, 2 * GIB - 300 * MIB);
    CHECK_EQUAL(total, 2 * GIB);
    CHECK_EQUAL(cuDeviceTotalMem(&total, 0), CUDA_SUCCESS);
    CHECK_EQUAL(total, 2 * GIB);
    container.region.file->hami.limit[0] = 5 * GIB;
    CHECK_EQUAL(cuMemGetInfo(&left, &total), CUDA_SUCCESS);
    CHECK_EQUAL(left, UINT32_MAX);
    CHECK_EQUAL(total, UINT32_MAX);
}
