/* Streams. Work is done when it is submitted; a stream that captures records it instead. */
#pragma once

#include "capture.h"
#include "driver.h"

struct CUstream_st {
    struct object object;
    struct CUstream_st *next; /* of the per-thread streams of a context */
    pthread_t thread;         /* of a per-thread stream */
    unsigned flags;
    int priority;
    unsigned long long id;
    uint64_t free_ns; /* when it is, see queue.h */
    struct capture *capture;
    struct CUstream_st *next_participant; /* of the same capture */
    CUgraphNode *depends_on;              /* what the next node comes after */
    size_t depends_count, depends_room;
    CUgreenCtx green;
};

enum { CU_STREAM_NON_BLOCKING = 1, GREATEST_PRIORITY = -5, LEAST_PRIORITY = 0 };

/* The stream that a handle means in this thread. The lock is held. */
CUresult stream_get(CUstream handle, struct CUstream_st **stream);

/* The same as the beginning of a call. */
#define stream_enter(handle, stream) stream_enter_as(__func__, handle, stream)
CUresult stream_enter_as(const char *call, CUstream handle, struct CUstream_st **stream);

struct CUstream_st *stream_new(struct CUctx_st *context, unsigned flags, int priority);

/* What a NULL handle means to the _ptsz functions. */
static inline CUstream per_thread(CUstream handle) { return handle == NULL ? CU_STREAM_PER_THREAD : handle; }

/* events.c: marks where the stream is now. */
void event_mark(CUevent event, struct CUstream_st *stream);
CUresult event_wait(struct CUstream_st *stream, CUevent event);

/* work.c: runs it now, or records it in the stream's capture. */
CUresult stream_do(struct CUstream_st *stream, const CUgraphNodeParams *work);

/* Runs one piece, and adds the time that a kernel takes. */
CUresult work_run(struct CUstream_st *stream, CUgraphNodeParams *work, uint64_t *kernel_ns);
