/*
 * Work of this process in time, where the configuration wants that. Each stream runs its kernels one after another, and
 * streams run beside each other: a kernel starts when its stream is free, counted in the device time that the process
 * gets. Not more than QUEUE_DEPTH kernels wait on a device; whoever submits more waits himself, without the lock.
 */
#pragma once

#include "stream.h"

/* Submits a kernel, or a whole graph as one, of that length. */
CUresult queue_submit(struct CUstream_st *stream, uint64_t length_ns);

/* The length of one run of a kernel: what its name says, with noise, and more the first time. */
uint64_t queue_kernel_length(CUfunction function);

/* Waits until the stream has done everything that was submitted to it, or the device has. The lock is given up meanwhile. */
CUresult queue_wait(struct CUstream_st *stream);
CUresult queue_wait_device(struct device *device);
bool queue_is_idle(struct CUstream_st *stream);

/* A moment on the stream: now if it is idle, otherwise when its last kernel ends. */
struct moment {
    bool passed;      /* then time_ns is known */
    uint64_t work_ns; /* on the process's axis of the device */
    uint64_t time_ns;
};
struct moment queue_moment(struct CUstream_st *stream);

/* Whether the moment passed; then its time is known. */
bool queue_passed(struct device *device, struct moment *moment);

/* Waits for it, without the lock. */
void queue_wait_moment(struct device *device, const struct moment *moment);

/* Makes the stream go on only after the moment. */
void queue_after(struct CUstream_st *stream, const struct moment *moment);

/* Drops what the streams of a context that ends have not done. */
void queue_drop(struct device *device);
