/* Signals are kept back while a thread holds something of ours: a handler may leave by siglongjmp, and nobody would give it back. Those
 * that tell of a fault come through. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <errno.h>
#include <signal.h>

static inline sigset_t signals_hold(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t held, before;
    sigfillset(&held);
    for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&held, faults[i]);
    sigprocmask(SIG_BLOCK, &held, &before); /* of this thread, on Linux */
    return before;
}

static inline void signals_release(const sigset_t *before)
{
    int saved = errno;
    sigprocmask(SIG_SETMASK, before, NULL);
    errno = saved;
}

#endif
