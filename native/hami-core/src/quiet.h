/* Calls into the driver that the application does not know of. While another thread captures a stream in global mode, a call that
 * the driver counts as unsafe fails and ruins that capture, unless this thread has said that it does not mind. */
#ifndef QUIET_H
#define QUIET_H

#include "driver.h"

struct quiet {
    CUstreamCaptureMode before;
    bool changed;
};

static inline struct quiet quiet_begin(void)
{
    struct quiet quiet = {CU_STREAM_CAPTURE_MODE_RELAXED, false};
    quiet.changed = cuda.cuThreadExchangeStreamCaptureMode(&quiet.before) == CUDA_SUCCESS;
    return quiet;
}

static inline void quiet_end(struct quiet quiet)
{
    if (quiet.changed)
        cuda.cuThreadExchangeStreamCaptureMode(&quiet.before);
}

#endif
