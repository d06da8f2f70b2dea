/* Signals are kept back while a thread holds something of ours: a handler may leave by siglongjmp, and nobody would give it back. Those
 * that tell of a fault come through. By system calls: each function of libc is one more that the loader looks up in every program. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's set of signals, which is the beginning of a sigset_t. */
enum { SIGNALS_BYTES = 8 };

static inline uint64_t signal_bit(int number)
{
    return UINT64_C(1) << (number - 1);
}

static inline void signals_mask(int how, const void *set, void *before)
{
    int saved = errno;
    syscall(SYS_rt_sigprocmask, how, set, before, SIGNALS_BYTES);
    errno = saved;
}

static inline sigset_t signals_hold(void)
{
    /* 32 to 34 are the C libraries' own. */
    const uint64_t through = signal_bit(SIGSEGV) | signal_bit(SIGBUS) | signal_bit(SIGFPE) | signal_bit(SIGILL) | signal_bit(SIGTRAP) |
                             signal_bit(SIGSYS) | signal_bit(SIGABRT) | signal_bit(32) | signal_bit(33) | signal_bit(34);
    const uint64_t held = ~through;
    sigset_t before = {0};
    signals_mask(SIG_BLOCK, &held, &before);
    return before;
}

static inline void signals_release(const sigset_t *before)
{
    signals_mask(SIG_SETMASK, before, NULL);
}

#endif
