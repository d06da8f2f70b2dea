#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <time.h>

#include "slow.h"

HOT uint64_t clock_coarse(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS_A_SECOND + (uint64_t)now.tv_nsec + 1;
}

uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS_A_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t clock_unix(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS_A_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t clock_unix_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (uint64_t)now.tv_sec;
}

void clock_sleep(uint64_t nanoseconds)
{
    struct timespec left = {(time_t)(nanoseconds / NANOSECONDS_A_SECOND), (long)(nanoseconds % NANOSECONDS_A_SECOND)};
    int saved = errno;
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    errno = saved;
}
