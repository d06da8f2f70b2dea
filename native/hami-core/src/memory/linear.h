/* Freeing a device pointer, by whichever function. */
#ifndef LINEAR_H
#define LINEAR_H

#include "../charge.h"

/* The kind of a pointer's record: as charge_kind, or its pool pays, or what is kept for graphs. */
enum { LINEAR_POOLED = 16, LINEAR_OF_GRAPH };

/* A pointer on its way out. Its record goes before the driver's free, since another thread may be given the same address right
 * after it. */
struct departure {
    bool known;
    struct record record;
};

void linear_depart(CUdeviceptr pointer, struct departure *departure);

/* After the driver's answer: the charge is given back, or the record put back. */
void linear_departed(const struct departure *departure, CUresult result);

/* A context is gone, and with it what was allocated in it. */
void linear_gone_with(CUcontext context);

#endif
