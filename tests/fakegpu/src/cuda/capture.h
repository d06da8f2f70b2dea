/* Stream capture: which streams record into which graph instead of running. The lock is held. */
#pragma once

#include "types.h"

#include <pthread.h>
#include <stdbool.h>

struct CUstream_st;

/* One capture, from cuStreamBeginCapture on a stream to cuStreamEndCapture on the same. */
struct capture {
    struct capture *next;
    CUgraph graph;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct CUstream_st *origin, *participants;
    unsigned long long id;
    bool invalidated, to_existing_graph;
};

CUresult capture_forbids_unsafe_call(void);
void capture_invalidate(struct capture *capture);

/* Work on the legacy stream would have to wait for blocking streams that capture. */
CUresult capture_forbids_legacy(const struct CUstream_st *legacy);

struct capture *capture_by_id(unsigned long long id);

/* Makes a stream take part, and these nodes come before its next one, beside those that already do. */
CUresult capture_join(struct CUstream_st *stream, struct capture *capture, const CUgraphNode *nodes, size_t count);

/* Adds a node after what the stream depends on, and makes it the only such node. */
CUresult capture_add(struct CUstream_st *stream, const CUgraphNodeParams *params, CUgraphNode *node);

/* Ends whatever a stream that is destroyed takes part in. */
void capture_forget_stream(struct CUstream_st *stream);
