/* A lock between the threads of one process: a futex word, 0 is free. It needs no libpthread and no initialiser, so a zeroed
 * page (a child of fork) has free locks. */
#ifndef LOCK_H
#define LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "slow.h"

#pragma GCC visibility push(hidden)

struct lock {
    uint32_t word;
};

SLOW void lock_wait(struct lock *lock);
SLOW void lock_wake(struct lock *lock);

/* For what is done to memory alone, where there is no place to be cancelled at: every allocation takes two of these. */
static inline bool lock_try_briefly(struct lock *lock)
{
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&lock->word, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void lock_take_briefly(struct lock *lock)
{
    if (!lock_try_briefly(lock))
        lock_wait(lock);
}

static inline void lock_drop_briefly(struct lock *lock)
{
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
        lock_wake(lock);
}

/* A thread that holds a lock is not cancelled: reading a file under it would be a place to end at, and nobody would drop the lock. */
struct lock_holder {
    unsigned locks;
    int cancel_state;
};
extern __thread struct lock_holder lock_holder;

static inline void lock_held(void)
{
    if (lock_holder.locks++ == 0)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &lock_holder.cancel_state);
}

static inline bool lock_try(struct lock *lock)
{
    if (!lock_try_briefly(lock))
        return false;
    lock_held();
    return true;
}

static inline void lock_take(struct lock *lock)
{
    lock_take_briefly(lock);
    lock_held();
}

static inline void lock_drop(struct lock *lock)
{
    lock_drop_briefly(lock);
    if (--lock_holder.locks == 0)
        pthread_setcancelstate(lock_holder.cancel_state, NULL);
}

#pragma GCC visibility pop

#endif
