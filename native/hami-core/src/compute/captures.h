/* Streams that capture. What is launched into one runs later, as part of a graph; it takes no GPU time, and an event recorded there
 * would become part of the graph. */
#ifndef CAPTURES_H
#define CAPTURES_H

#include <stdbool.h>

#include "../driver_abi.h"

/* Captures that have begun in this process and are not known to have ended. */
extern uint32_t captures_open;

bool captures_ask(CUstream stream, bool per_thread);

/* Whether work on this stream must be left alone: it captures, or the driver will refuse it because another one does. */
static inline bool captures_touch(CUstream stream, bool per_thread)
{
    return __builtin_expect(__atomic_load_n(&captures_open, __ATOMIC_ACQUIRE) != 0, 0) && captures_ask(stream, per_thread);
}

#endif
