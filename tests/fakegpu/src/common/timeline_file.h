/* The file "<state>.timeline": what devices do when, shared by all processes; and the model's clock. */
#pragma once

#include "config.h"
#include "mapped.h"

#include <stdatomic.h>
#include <stdint.h>

enum { CLOCK_PARTICIPANTS = 256, TIMELINE_PROCESSES = 32, TIMELINE_SEGMENTS = 1024 };

enum clock_state { CLOCK_FREE, CLOCK_RUNNING, CLOCK_SLEEPING };

struct clock_participant {
    enum clock_state state;
    int slot; /* of its process in the state */
    uint64_t image, wake_ns;
};

struct model_clock {
    _Atomic uint64_t now_ns;
    _Atomic uint32_t ticks; /* changes when time does; slept on */
    struct clock_participant participant[CLOCK_PARTICIPANTS];
};

/* A stretch of time in which a process had the device, and how much device time it had had at its beginning. */
struct timeline_segment {
    uint64_t start_ns, end_ns, work_ns;
};

/* A process's work on a device, on an axis of its own: device time that it was given. */
struct timeline_process {
    int slot; /* 1 + that of the state; 0 = free */
    uint64_t image;
    uint64_t done_ns;           /* given so far */
    _Atomic uint64_t wanted_ns; /* submitted so far */
    uint32_t segments;           /* ever; the last TIMELINE_SEGMENTS are kept */
    struct timeline_segment segment[TIMELINE_SEGMENTS];
};

struct device_timeline {
    _Atomic uint64_t time_ns; /* decided up to here */
    uint64_t slice_left_ns;
    int current; /* whose turn it is */
    struct timeline_process process[TIMELINE_PROCESSES];
};

struct timeline_file {
    struct mapped_header header;
    struct model_clock clock;
    struct device_timeline device[MAX_DEVICES];
};
