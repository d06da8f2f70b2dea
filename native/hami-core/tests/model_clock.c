/* The clock of src/clock.c in the build for model runs: the fake GPU's, so that a minute takes as long as what happens in it. */
#define _GNU_SOURCE
#include "../src/clock.h"

#include <dlfcn.h>
#include <time.h>

#include "../src/driver_abi.h"

struct model {
    size_t bytes;
    uint64_t (*now_ns)(void);
    void (*sleep_until_ns)(uint64_t wake_ns);
    void (*join)(void);
    void (*leave)(void);
};

/* tests/fakegpu/README.md. NULL before cuInit. */
static const struct model *model(void)
{
    static const CUuuid id = {"\xfa\x4e\x9b\x0c\xc1\x0c\x40\x00\x80\x00"
                              "fakegp"};
    static const struct model *found;
    static CUresult (*get)(const void **, const CUuuid *);
    const void *table;
    if (found)
        return found;
    if (!get)
        get = (CUresult(*)(const void **, const CUuuid *))dlsym(RTLD_DEFAULT, "cuGetExportTable");
    if (get && get(&table, &id) == CUDA_SUCCESS)
        found = table;
    return found;
}

static uint64_t real_time(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS_A_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t clock_now(void)
{
    return model() ? model()->now_ns() : real_time(CLOCK_MONOTONIC);
}

uint64_t clock_coarse(void)
{
    return clock_now();
}

uint64_t clock_unix(void)
{
    return model() ? clock_now() : real_time(CLOCK_REALTIME);
}

uint64_t clock_unix_seconds(void)
{
    return model() ? clock_now() / NANOSECONDS_A_SECOND : real_time(CLOCK_REALTIME) / NANOSECONDS_A_SECOND;
}

void clock_sleep(uint64_t nanoseconds)
{
    struct timespec real = {(time_t)(nanoseconds / NANOSECONDS_A_SECOND), (long)(nanoseconds % NANOSECONDS_A_SECOND)};
    if (model())
        model()->sleep_until_ns(model()->now_ns() + nanoseconds);
    else
        nanosleep(&real, NULL);
}
