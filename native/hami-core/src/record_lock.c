#define _GNU_SOURCE
#include "record_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "clock.h"

bool record_lock_try(int file, short kind, off_t first, off_t count)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return fcntl(file, F_SETLK, &lock) == 0;
}

void record_lock_drop(int file, off_t first, off_t count)
{
    record_lock_try(file, F_UNLCK, first, count);
}

pid_t record_lock_holder(int file, off_t first, off_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
    return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_pid : -1;
}

bool record_lock_wait(int file, short kind, off_t first, off_t count, pid_t *holder)
{
    const uint64_t longest_pause = 2000000;
    uint64_t pause = 50000, deadline = clock_coarse() + UINT64_C(10) * NANOSECONDS_A_SECOND;

    while (!record_lock_try(file, kind, first, count)) {
        *holder = -1;
        if (errno != EAGAIN && errno != EACCES)
            return false;
        if (clock_coarse() > deadline) {
            *holder = record_lock_holder(file, first, count);
            return false;
        }
        clock_sleep(pause);
        pause = pause * 2 < longest_pause ? pause * 2 : longest_pause;
    }
    return true;
}
