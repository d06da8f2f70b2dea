/* Time and sleep, in one place so that a test build can replace them. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { NANOSECONDS_A_SECOND = 1000000000 };

/* Nanoseconds of the monotonic clock, as of the kernel's last tick: cheap, and never 0. */
uint64_t clock_coarse(void);

/* Nanoseconds of the monotonic clock, exactly: costs a few times as much. */
uint64_t clock_now(void);

/* Nanoseconds since 1970, and seconds as of the kernel's last tick. */
uint64_t clock_unix(void);
uint64_t clock_unix_seconds(void);

/* Signals are handled meanwhile; it goes on after. */
void clock_sleep(uint64_t nanoseconds);

#pragma GCC visibility pop

#endif
