/* Arrays. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "../driver_abi.h"

/* A context is gone, and with it its arrays and what was mapped into them. */
void arrays_gone_with(CUcontext context);

#endif
