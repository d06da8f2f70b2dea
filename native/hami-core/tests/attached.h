/* This process as one of a container without a limit, with cards that are the test's: what a test asks of the driver or of NVML it
 * answers itself, by its own functions in `cuda` and `nvml`. */
#ifndef ATTACHED_H
#define ATTACHED_H

#include <stdbool.h>

#include "../src/container.h"

enum { ATTACHED_CARDS = 2, ATTACHED_HOST_PID = 4711 };

/* Whose context is current. */
extern CUdevice attached_current;

/* Makes its `process`, which has slot 0 of a region of its own, in memory that children of fork share; a monitor has told its PID on
 * the node. Once more makes it afresh. */
void attached_begin(void);

#endif
