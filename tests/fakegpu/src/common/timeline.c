#include "timeline.h"

#include "clock.h"
#include "message.h"
#include "timeline_file.h"

#include <pthread.h>
#include <stdio.h>

static const struct mapped_header HEADER = {
    .magic = 0x454d4954474b4146 /* "FAKGTIME" */, .version = 1, .bytes = sizeof(struct timeline_file)};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fill(void *memory, const char *path) {
    (void)path;
    struct timeline_file *file = memory;
    atomic_store(&file->clock.now_ns, 1000000000); /* not 0, which would look like unset */
}

bool timeline_open(struct timeline *timeline, const struct config *config, const struct attachment *attachment) {
    *timeline = (struct timeline){.attachment = attachment, .slice_ns = config->slice_ns};
    clock_use_real();
    if (!config->timeline) {
        return true;
    }
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s.timeline", config->state_path) >= (int)sizeof path) {
        message("%s: state is too long a path", config->path);
        return false;
    }
    timeline->file = mapped_open(path, HEADER, fill);
    if (timeline->file != NULL && config->model_clock) {
        clock_use_model(attachment, timeline->file);
    }
    return timeline->file != NULL;
}

static struct device_timeline *enter(struct timeline *timeline, int device) {
    pthread_mutex_lock(&lock);
    state_lock(timeline->attachment, FIRST_TIMELINE_BYTE + device);
    return &timeline->file->device[device];
}

static void leave(struct timeline *timeline, int device) {
    state_unlock(timeline->attachment, FIRST_TIMELINE_BYTE + device);
    pthread_mutex_unlock(&lock);
}

static bool has_work(const struct timeline_process *process) {
    return process->slot != 0 && process->wanted_ns > process->done_ns;
}

static bool lives(const struct timeline *timeline, const struct timeline_process *process) {
    int slot = process->slot - 1;
    return atomic_load(&timeline->attachment->state->slot[slot].image) == process->image &&
           state_slot_lives(timeline->attachment, slot);
}

static void drop_the_dead(const struct timeline *timeline, struct device_timeline *device) {
    for (int i = 0; i < TIMELINE_PROCESSES; i++) {
        struct timeline_process *process = &device->process[i];
        if (has_work(process) && process->slot - 1 != timeline->attachment->slot && !lives(timeline, process)) {
            process->wanted_ns = process->done_ns;
        }
    }
}

/* Whose turn comes after the current one's, and how many have work. */
static int next_turn(const struct timeline_process *process, int current, int *working) {
    int next = -1;
    *working = 0;
    for (int i = 1; i <= TIMELINE_PROCESSES; i++) {
        int index = (current + i) % TIMELINE_PROCESSES;
        if (has_work(&process[index])) {
            ++*working;
            next = next < 0 ? index : next;
        }
    }
    return next;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void record(struct timeline_process *process, uint64_t start_ns, uint64_t length_ns) {
    struct timeline_segment *last =
        process->segments == 0 ? NULL : &process->segment[(process->segments - 1) % TIMELINE_SEGMENTS];
    if (last != NULL && last->end_ns == start_ns) {
        last->end_ns += length_ns;
        return;
    }
    process->segment[process->segments % TIMELINE_SEGMENTS] = (struct timeline_segment){
        .start_ns = start_ns, .end_ns = start_ns + length_ns, .work_ns = process->done_ns};
    process->segments++;
}

/* What the rules of turns decide next: who runs from time_ns on, and for how long at most. -1: nobody has work. */
static int decide(const struct timeline_process *process, uint64_t slice_ns, int *current, uint64_t *slice_left_ns,
                  uint64_t *length_ns) {
    int working;
    int next = next_turn(process, *current, &working);
    if (next < 0) {
        return -1;
    }
    if (!has_work(&process[*current]) || *slice_left_ns == 0) {
        *current = next;
        *slice_left_ns = slice_ns;
    }
    uint64_t left = process[*current].wanted_ns - process[*current].done_ns;
    if (working == 1) {
        *slice_left_ns = slice_ns;
        *length_ns = left;
    } else {
        *length_ns = least(left, *slice_left_ns);
    }
    return *current;
}

static void advance(struct timeline *timeline, struct device_timeline *device, uint64_t now_ns) {
    if (device->time_ns == 0) {
        device->time_ns = now_ns;
    }
    if (device->time_ns < now_ns) {
        drop_the_dead(timeline, device);
    }
    while (device->time_ns < now_ns) {
        uint64_t length_ns;
        int who = decide(device->process, timeline->slice_ns, &device->current, &device->slice_left_ns, &length_ns);
        if (who < 0) {
            device->time_ns = now_ns;
            break;
        }
        length_ns = least(length_ns, now_ns - device->time_ns);
        struct timeline_process *process = &device->process[who];
        record(process, device->time_ns, length_ns);
        process->done_ns += length_ns;
        device->time_ns += length_ns;
        device->slice_left_ns -= least(length_ns, device->slice_left_ns);
    }
}

int timeline_place(struct timeline *timeline, int device_index) {
    struct device_timeline *device = enter(timeline, device_index);
    int place = -1;
    for (int i = 0; i < TIMELINE_PROCESSES && place < 0; i++) {
        struct timeline_process *process = &device->process[i];
        if (process->slot == 0 || !lives(timeline, process)) {
            process->slot = 0;
            process->image = state_image_mark();
            process->done_ns = 0;
            process->wanted_ns = 0;
            process->segments = 0;
            process->slot = timeline->attachment->slot + 1;
            place = i;
        }
    }
    leave(timeline, device_index);
    if (place < 0) {
        message("more than %d processes use the timeline of a device: this one's kernels take no time",
                TIMELINE_PROCESSES);
    }
    return place;
}

/* While time stands still there is nothing to bring up to date, and the lock can be saved. */
void timeline_submit(struct timeline *timeline, int device_index, int place, uint64_t wanted_ns) {
    struct device_timeline *device = &timeline->file->device[device_index];
    if (clock_stands_still() && device->time_ns == clock_now_ns()) {
        if (wanted_ns > device->process[place].wanted_ns) {
            device->process[place].wanted_ns = wanted_ns;
        }
        return;
    }
    enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    if (wanted_ns > device->process[place].wanted_ns) {
        device->process[place].wanted_ns = wanted_ns;
    }
    leave(timeline, device_index);
}

uint64_t timeline_done(struct timeline *timeline, int device_index, int place) {
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    uint64_t done_ns = device->process[place].done_ns;
    leave(timeline, device_index);
    return done_ns;
}

void timeline_drop(struct timeline *timeline, int device_index, int place) {
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    device->process[place].wanted_ns = device->process[place].done_ns;
    leave(timeline, device_index);
}

uint64_t timeline_predict(struct timeline *timeline, int device_index, int place, uint64_t work_ns) {
    static _Thread_local struct timeline_process copy[TIMELINE_PROCESSES];
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    for (int i = 0; i < TIMELINE_PROCESSES; i++) {
        copy[i].slot = device->process[i].slot;
        copy[i].done_ns = device->process[i].done_ns;
        copy[i].wanted_ns = device->process[i].wanted_ns;
    }
    uint64_t time_ns = device->time_ns, slice_left_ns = device->slice_left_ns, length_ns;
    int current = device->current;
    leave(timeline, device_index);
    while (copy[place].done_ns < work_ns) {
        int who = decide(copy, timeline->slice_ns, &current, &slice_left_ns, &length_ns);
        if (who < 0) {
            break;
        }
        if (who == place) {
            length_ns = least(length_ns, work_ns - copy[place].done_ns);
        }
        copy[who].done_ns += length_ns;
        time_ns += length_ns;
        slice_left_ns -= least(length_ns, slice_left_ns);
    }
    return time_ns;
}

static uint32_t first_kept(const struct timeline_process *process) {
    return process->segments > TIMELINE_SEGMENTS ? process->segments - TIMELINE_SEGMENTS : 0;
}

uint64_t timeline_when(struct timeline *timeline, int device_index, int place, uint64_t work_ns) {
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    const struct timeline_process *process = &device->process[place];
    uint64_t when_ns = device->time_ns;
    for (uint32_t i = process->segments; i > first_kept(process); i--) {
        const struct timeline_segment *segment = &process->segment[(i - 1) % TIMELINE_SEGMENTS];
        when_ns = segment->start_ns + (work_ns > segment->work_ns ? work_ns - segment->work_ns : 0);
        if (work_ns > segment->work_ns) {
            break;
        }
    }
    leave(timeline, device_index);
    return when_ns;
}

static uint64_t busy_of(const struct timeline_process *process, uint64_t from_ns, uint64_t to_ns) {
    uint64_t busy_ns = 0;
    for (uint32_t i = process->segments; i > first_kept(process); i--) {
        const struct timeline_segment *segment = &process->segment[(i - 1) % TIMELINE_SEGMENTS];
        if (segment->end_ns <= from_ns) {
            break;
        }
        uint64_t start_ns = segment->start_ns > from_ns ? segment->start_ns : from_ns;
        uint64_t end_ns = least(segment->end_ns, to_ns);
        busy_ns += end_ns > start_ns ? end_ns - start_ns : 0;
    }
    return busy_ns;
}

/* Never two at a time, so that the sum is the union. */
uint64_t timeline_busy(struct timeline *timeline, int device_index, uint64_t from_ns, uint64_t to_ns) {
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    uint64_t busy_ns = 0;
    for (int i = 0; i < TIMELINE_PROCESSES; i++) {
        busy_ns += busy_of(&device->process[i], from_ns, to_ns);
    }
    leave(timeline, device_index);
    return busy_ns;
}

bool timeline_busy_for(struct timeline *timeline, int device_index, int slot, uint64_t from_ns, uint64_t to_ns,
                       uint64_t *busy_ns) {
    struct device_timeline *device = enter(timeline, device_index);
    advance(timeline, device, clock_now_ns());
    *busy_ns = 0;
    for (int i = 0; i < TIMELINE_PROCESSES; i++) {
        const struct timeline_process *process = &device->process[i];
        if (process->slot == slot + 1 && process->image == atomic_load(&timeline->attachment->state->slot[slot].image)) {
            *busy_ns += busy_of(process, from_ns, to_ns);
        }
    }
    leave(timeline, device_index);
    return *busy_ns > 0;
}
