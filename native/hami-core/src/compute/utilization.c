#include "utilization.h"

#include <errno.h>
#include <stdlib.h>

#include "../clock.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"

enum { SAMPLES = 1024 };

static const nvmlProcessUtilizationSample_t *newest_of(const nvmlProcessUtilizationSample_t *samples, unsigned count, uint32_t pid)
{
    const nvmlProcessUtilizationSample_t *newest = NULL;
    for (unsigned i = 0; i < count; i++)
        if (samples[i].pid == pid && (!newest || samples[i].timeStamp > newest->timeStamp))
            newest = &samples[i];
    return newest;
}

static bool seen_before(unsigned number, uint32_t pid)
{
    for (unsigned earlier = 0; earlier < number; earlier++)
        if (container_host_pid_of(earlier) == pid)
            return true;
    return false;
}

/* Writes what is said of the processes into their slots and adds it up; one that has several copies of the library has several slots.
 * False: one of them cannot be told from other containers', so the sum is not the container's. */
static bool add_up(unsigned device, const nvmlProcessUtilizationSample_t *samples, unsigned count, unsigned *percent)
{
    struct region_file *file = container.region.file;
    int32_t ever_used = __atomic_load_n(&file->hami.proc_num, __ATOMIC_RELAXED);
    bool all_known = true;
    *percent = 0;
    for (unsigned number = 0; number < REGION_SLOTS && (int32_t)number < ever_used; number++) {
        if (__atomic_load_n(&file->extension.slots[number].state, __ATOMIC_ACQUIRE) != SLOT_USED)
            continue;
        uint32_t pid = container_host_pid_of(number);
        all_known &= pid != 0;
        if (pid == 0)
            continue;
        const nvmlProcessUtilizationSample_t *newest = newest_of(samples, count, pid);
        unsigned busy = newest ? newest->smUtil : 0;
        __atomic_store_n(&file->hami.procs[number].device_util[device].sm_util, busy, __ATOMIC_RELAXED);
        *percent += seen_before(number, pid) ? 0 : busy;
    }
    return all_known;
}

/* NVML says the same of a card where nothing ran and of one of which it has told everything: what was told last stands for a while. */
static void let_rest(unsigned device, uint64_t seen)
{
    const uint64_t stands_us = 2000000;
    unsigned percent;
    if (clock_unix() / 1000 > seen + stands_us)
        add_up(device, NULL, 0, &percent);
}

static bool ask(unsigned device, nvmlProcessUtilizationSample_t *samples, uint64_t *seen, unsigned *percent)
{
    nvmlDevice_t card;
    unsigned count = SAMPLES;
    uint64_t newest = *seen;
    if (nvml.nvmlDeviceGetHandleByUUID(device_uuid(device), &card) != NVML_SUCCESS)
        return false;
    nvmlReturn_t result = nvml.nvmlDeviceGetProcessUtilization(card, samples, &count, *seen);
    if (result == NVML_ERROR_NOT_FOUND)
        let_rest(device, *seen);
    if (result != NVML_SUCCESS)
        return false;
    for (unsigned i = 0; i < count; i++)
        newest = samples[i].timeStamp > newest ? samples[i].timeStamp : newest;
    if (newest == *seen || !add_up(device, samples, count, percent))
        return false;
    *seen = newest;
    return true;
}

bool utilization_of_container(unsigned device, uint64_t *seen, unsigned *percent)
{
    int saved = errno;
    nvmlProcessUtilizationSample_t *samples = driver_begin_nvml() ? malloc(SAMPLES * sizeof(*samples)) : NULL;
    bool known = samples && ask(device, samples, seen, percent);
    free(samples);
    errno = saved;
    return known;
}
