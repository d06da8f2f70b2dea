/* A lock between the threads of one process: a futex word, 0 is free. It needs no libpthread and no initialiser, so a zeroed
 * page (a child of fork) has free locks. */
#ifndef LOCK_H
#define LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct lock {
    uint32_t word;
};

void lock_wait(struct lock *lock);
void lock_wake(struct lock *lock);

static inline bool lock_try(struct lock *lock)
{
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&lock->word, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void lock_take(struct lock *lock)
{
    if (!lock_try(lock))
        lock_wait(lock);
}

static inline void lock_drop(struct lock *lock)
{
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
        lock_wake(lock);
}

#endif
