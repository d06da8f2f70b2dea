/* POSIX record locks: they belong to the process, not to a descriptor or a thread, are never inherited, and the kernel drops them
 * when the process ends or executes another program. */
#ifndef RECORD_LOCK_H
#define RECORD_LOCK_H

#include <stdbool.h>
#include <sys/types.h>

/* F_RDLCK or F_WRLCK on `count` bytes. False: another process holds a conflicting lock, or errno says what went wrong. */
bool record_lock_try(int file, short kind, off_t first, off_t count);

void record_lock_drop(int file, off_t first, off_t count);

/* PID of a process that holds any of these bytes, as this PID namespace sees it (0: not visible here), -1 if none does. */
pid_t record_lock_holder(int file, off_t first, off_t count);

/* Tries again, a little later each time, for ten seconds. False: *holder still has it, or -1 and errno. */
bool record_lock_wait(int file, short kind, off_t first, off_t count, pid_t *holder);

#endif
