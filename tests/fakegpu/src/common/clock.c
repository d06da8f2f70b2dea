#include "clock.h"

#include "message.h"
#include "timeline_file.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct model_clock *model; /* NULL: the real one */
static const struct attachment *attached;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int joined; /* 1 + place among the participants */

void clock_use_real(void) { model = NULL; }

void clock_use_model(const struct attachment *attachment, struct timeline_file *file) {
    attached = attachment;
    model = &file->clock;
}

static uint64_t monotonic_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t clock_now_ns(void) { return model == NULL ? monotonic_ns() : atomic_load(&model->now_ns); }

static void enter(void) {
    pthread_mutex_lock(&lock);
    state_lock(attached, CLOCK_BYTE);
}

static void leave(void) {
    state_unlock(attached, CLOCK_BYTE);
    pthread_mutex_unlock(&lock);
}

static void drop_the_dead(void) {
    for (int i = 0; i < CLOCK_PARTICIPANTS; i++) {
        struct clock_participant *participant = &model->participant[i];
        const struct process_slot *slot = &attached->state->slot[participant->slot];
        bool same = atomic_load(&slot->image) == participant->image;
        if (participant->state != CLOCK_FREE && (!same || !state_slot_lives(attached, participant->slot))) {
            participant->state = CLOCK_FREE;
        }
    }
}

static int take_place(void) {
    for (int i = 0; i < CLOCK_PARTICIPANTS; i++) {
        struct clock_participant *participant = &model->participant[i];
        if (participant->state == CLOCK_FREE) {
            *participant = (struct clock_participant){
                .state = CLOCK_RUNNING, .slot = attached->slot, .image = state_image_mark()};
            return i;
        }
    }
    return -1;
}

void clock_join(void) {
    if (model == NULL || joined != 0) {
        return;
    }
    enter();
    joined = take_place() + 1;
    leave();
}

bool clock_stands_still(void) { return model != NULL && joined != 0; }

static void wake_others(void) {
    atomic_fetch_add(&model->ticks, 1);
    syscall(SYS_futex, &model->ticks, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void clock_leave(void) {
    if (model == NULL || joined == 0) {
        return;
    }
    enter();
    model->participant[joined - 1].state = CLOCK_FREE;
    joined = 0;
    wake_others();
    leave();
}

/* If nobody runs, nor is about to: on to the first waking. */
static void advance(void) {
    uint64_t now = atomic_load(&model->now_ns), first = UINT64_MAX;
    for (int i = 0; i < CLOCK_PARTICIPANTS; i++) {
        const struct clock_participant *participant = &model->participant[i];
        bool due = participant->state == CLOCK_SLEEPING && participant->wake_ns <= now;
        if (participant->state == CLOCK_RUNNING || due) {
            return;
        }
        if (participant->state == CLOCK_SLEEPING && participant->wake_ns < first) {
            first = participant->wake_ns;
        }
    }
    if (first != UINT64_MAX) {
        atomic_store(&model->now_ns, first);
        wake_others();
    }
}

/* More threads than can take part: one that does not waits for the others to let time pass. */
static void watch(uint64_t wake_ns) {
    message("more than %d threads sleep by the model's clock", CLOCK_PARTICIPANTS);
    while (atomic_load(&model->now_ns) < wake_ns) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
}

static void sleep_in_model(uint64_t wake_ns) {
    enum { LOOK_FOR_THE_DEAD_NS = 20000000 };
    enter();
    bool guest = joined == 0;
    int place = guest ? take_place() : joined - 1;
    if (place < 0) {
        leave();
        watch(wake_ns);
        return;
    }
    struct clock_participant *self = &model->participant[place];
    self->wake_ns = wake_ns;
    self->state = CLOCK_SLEEPING;
    for (;;) {
        advance();
        if (atomic_load(&model->now_ns) >= wake_ns) {
            break;
        }
        uint32_t ticks = atomic_load(&model->ticks);
        leave();
        struct timespec patience = {.tv_nsec = LOOK_FOR_THE_DEAD_NS};
        long result = syscall(SYS_futex, &model->ticks, FUTEX_WAIT, ticks, &patience, NULL, 0);
        enter();
        if (result != 0) {
            drop_the_dead();
        }
    }
    self->state = guest ? CLOCK_FREE : CLOCK_RUNNING;
    leave();
}

void clock_sleep_until_ns(uint64_t wake_ns) {
    if (model != NULL) {
        sleep_in_model(wake_ns);
        return;
    }
    struct timespec time = {.tv_sec = (time_t)(wake_ns / 1000000000u), .tv_nsec = (long)(wake_ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}
