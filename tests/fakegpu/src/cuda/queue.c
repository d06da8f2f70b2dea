#include "queue.h"

#include "../common/clock.h"
#include "../common/message.h"
#include "../common/timeline.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE_DEPTH = 1024, FIRST_RUN_NS = 500000 };

struct device_queue {
    int place;                    /* on the timeline; -1 before the first use */
    uint64_t done_ns, looked_ns;  /* as far as we saw, and when */
    uint64_t wanted_ns;           /* submitted */
    uint64_t end_ns[QUEUE_DEPTH]; /* of each kernel that may wait still, in the order of submission */
    unsigned first, count;
};

static struct timeline *timeline(void) { return &driver.timeline; }

/* NULL where kernels take no time, or too many processes use the device's timeline. */
static struct device_queue *queue_of(struct device *device) {
    if (timeline()->file == NULL) {
        return NULL;
    }
    if (device->queue == NULL) {
        device->queue = calloc(1, sizeof *device->queue);
        if (device->queue != NULL) {
            device->queue->place = timeline_place(timeline(), device->state_index);
        }
    }
    return device->queue != NULL && device->queue->place >= 0 ? device->queue : NULL;
}

static void look(struct device *device, struct device_queue *queue) {
    uint64_t now_ns = clock_now_ns();
    if (clock_stands_still() && queue->looked_ns == now_ns) {
        return;
    }
    queue->looked_ns = now_ns;
    queue->done_ns = timeline_done(timeline(), device->state_index, queue->place);
    while (queue->count > 0 && queue->end_ns[queue->first] <= queue->done_ns) {
        queue->first = (queue->first + 1) % QUEUE_DEPTH;
        queue->count--;
    }
}

/* Waits without the lock until the process got that much of the device. */
static void wait_for(struct device *device, struct device_queue *queue, uint64_t work_ns) {
    for (look(device, queue); queue->done_ns < work_ns; look(device, queue)) {
        uint64_t wake_ns = timeline_predict(timeline(), device->state_index, queue->place, work_ns);
        pthread_mutex_unlock(&driver_lock);
        clock_sleep_until_ns(wake_ns);
        pthread_mutex_lock(&driver_lock);
    }
}

static bool is_alive(const struct CUstream_st *stream, unsigned long long id) {
    return stream->object.type == OBJECT_STREAM && stream->id == id;
}

/* Blocking streams and the legacy one wait for each other. */
static uint64_t free_at(struct CUstream_st *stream) {
    struct CUctx_st *context = stream->object.context;
    uint64_t when_ns = stream->free_ns;
    bool legacy = stream == context->legacy_stream;
    if (!legacy && context->legacy_stream != NULL && (stream->flags & CU_STREAM_NON_BLOCKING) == 0) {
        when_ns = context->legacy_stream->free_ns > when_ns ? context->legacy_stream->free_ns : when_ns;
    }
    return legacy && context->blocking_free_ns > when_ns ? context->blocking_free_ns : when_ns;
}

CUresult queue_submit(struct CUstream_st *stream, uint64_t length_ns) {
    struct device *device = stream->object.context->device;
    struct device_queue *queue = queue_of(device);
    unsigned long long id = stream->id;
    if (queue == NULL || length_ns == 0) {
        return CUDA_SUCCESS;
    }
    look(device, queue);
    while (queue->count == QUEUE_DEPTH) { /* then until a quarter is free: waking is not for nothing */
        wait_for(device, queue, queue->end_ns[(queue->first + QUEUE_DEPTH / 4) % QUEUE_DEPTH]);
    }
    if (!is_alive(stream, id)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    uint64_t start_ns = free_at(stream);
    start_ns = start_ns > queue->done_ns ? start_ns : queue->done_ns;
    stream->free_ns = start_ns + length_ns;
    struct CUctx_st *context = stream->object.context;
    bool blocking = stream != context->legacy_stream && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
    if (blocking && stream->free_ns > context->blocking_free_ns) {
        context->blocking_free_ns = stream->free_ns;
    }
    queue->end_ns[(queue->first + queue->count++) % QUEUE_DEPTH] = stream->free_ns;
    if (stream->free_ns > queue->wanted_ns) {
        queue->wanted_ns = stream->free_ns;
        timeline_submit(timeline(), device->state_index, queue->place, queue->wanted_ns);
    }
    return CUDA_SUCCESS;
}

/* Uniform in (0, 1), from a seed that is said where it was not given. */
static double chance(void) {
    static uint64_t state;
    static bool seeded;
    if (!seeded) {
        state = driver.config.seed;
        if (!driver.config.seeded) {
            struct timespec time;
            clock_gettime(CLOCK_REALTIME, &time);
            state = (uint64_t)time.tv_nsec ^ (uint64_t)time.tv_sec << 20 ^ (uint64_t)getpid() << 40;
            message("seed = %llu", (unsigned long long)state);
        }
        seeded = true;
    }
    state += 0x9e3779b97f4a7c15; /* splitmix64 */
    uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return ((double)((mixed ^ mixed >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void) { /* the sum of twelve is near enough, and never far out */
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += chance();
    }
    return sum;
}

/* A name that ends in a number and a unit, such as "train_250us"; other kernels take no time. */
static uint64_t named_length_ns(const char *name) {
    const char *last = strrchr(name, '_');
    char *unit;
    unsigned long long number = last == NULL ? 0 : strtoull(last + 1, &unit, 10);
    if (last == NULL || unit == last + 1) {
        return 0;
    }
    return strcmp(unit, "ns") == 0   ? number
           : strcmp(unit, "us") == 0 ? number * 1000
           : strcmp(unit, "ms") == 0 ? number * 1000000
                                     : 0;
}

uint64_t queue_kernel_length(CUfunction function) {
    uint64_t length_ns = timeline()->file == NULL ? 0 : named_length_ns(function->name);
    if (length_ns == 0) {
        return 0;
    }
    double noisy = (double)length_ns * (1 + normal() * driver.config.noise_percent / 100);
    length_ns = noisy < 1 ? 1 : (uint64_t)noisy;
    if (!function->ran) {
        function->ran = true;
        length_ns += FIRST_RUN_NS;
    }
    return length_ns;
}

CUresult queue_wait(struct CUstream_st *stream) {
    struct device *device = stream->object.context->device;
    struct device_queue *queue = queue_of(device);
    unsigned long long id = stream->id;
    if (queue == NULL) {
        return CUDA_SUCCESS;
    }
    wait_for(device, queue, free_at(stream));
    return is_alive(stream, id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult queue_wait_device(struct device *device) {
    struct device_queue *queue = queue_of(device);
    if (queue != NULL) {
        wait_for(device, queue, queue->wanted_ns);
    }
    return CUDA_SUCCESS;
}

bool queue_is_idle(struct CUstream_st *stream) {
    struct device *device = stream->object.context->device;
    struct device_queue *queue = queue_of(device);
    if (queue == NULL) {
        return true;
    }
    look(device, queue);
    return free_at(stream) <= queue->done_ns;
}

struct moment queue_moment(struct CUstream_st *stream) {
    struct device *device = stream->object.context->device;
    struct device_queue *queue = queue_of(device);
    struct moment moment = {.passed = true, .time_ns = clock_now_ns()};
    if (queue == NULL) {
        return moment;
    }
    look(device, queue);
    moment.work_ns = free_at(stream);
    moment.passed = moment.work_ns <= queue->done_ns;
    return moment;
}

bool queue_passed(struct device *device, struct moment *moment) {
    struct device_queue *queue = queue_of(device);
    if (!moment->passed && queue != NULL) {
        look(device, queue);
        if (moment->work_ns <= queue->done_ns) {
            moment->passed = true;
            moment->time_ns = timeline_when(timeline(), device->state_index, queue->place, moment->work_ns);
        }
    }
    return moment->passed;
}

void queue_wait_moment(struct device *device, const struct moment *moment) {
    struct device_queue *queue = queue_of(device);
    if (queue != NULL) {
        wait_for(device, queue, moment->work_ns);
    }
}

void queue_after(struct CUstream_st *stream, const struct moment *moment) {
    if (!moment->passed && moment->work_ns > stream->free_ns) {
        stream->free_ns = moment->work_ns;
    }
}

void queue_drop(struct device *device) {
    struct device_queue *queue = device->queue;
    if (queue == NULL || queue->place < 0) {
        return;
    }
    timeline_drop(timeline(), device->state_index, queue->place);
    look(device, queue);
    queue->wanted_ns = queue->done_ns;
    queue->count = 0;
}
