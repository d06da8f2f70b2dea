/* A process that is stopped between two of its instructions, so that something can happen just there. */
#ifndef STEPPING_H
#define STEPPING_H

#include <stdbool.h>
#include <sys/types.h>

/* Forks a process that runs `prepare` (may be NULL) and then so many instructions of `act`, or all if there are fewer. It is stopped
 * when this returns; threads that `prepare` made are not. Skips the test with a sanitized library: what is instrumented is thousands
 * of instructions, and not those that ship. */
struct stepped {
    pid_t pid;
    bool ended; /* `act` came to its end */
} stepped(void (*prepare)(void), void (*act)(void), unsigned long instructions);

/* Lets it go on to the end of `act`, where it stops. */
void stepped_go_on(const struct stepped *process);

void stepped_kill(const struct stepped *process);

#endif
