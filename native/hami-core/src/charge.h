/* Charging memory to this container before the driver is asked for it, and giving the charge back. */
#ifndef CHARGE_H
#define CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_abi.h"

enum charge_kind { CHARGE_DATA, CHARGE_CONTEXT, CHARGE_MODULE };

/* Bytes charged and not yet paid out. */
struct charge {
    unsigned device; /* index in the region, DEVICE_NONE if nothing is counted there */
    enum charge_kind kind;
    uint64_t bytes;
};

/* The region index of the current context's device, DEVICE_NONE where nothing is counted. Else the error to return: the driver's
 * own without a context, CUDA_ERROR_NOT_PERMITTED where the container's share cannot be enforced. */
CUresult charge_current_device(unsigned *device);

/* Charges, in one step, if the container stays within its limit. CUDA_ERROR_OUT_OF_MEMORY: it would not, which was counted and,
 * at most once a second, said. */
CUresult charge_take(struct charge *charge, unsigned device, enum charge_kind kind, uint64_t bytes);

void charge_give_back(const struct charge *charge);

/* Notes that the charge belongs to a device pointer. False: no memory to note it; the charge stays with the caller. */
bool charge_bind(const struct charge *charge, CUdeviceptr pointer);

/* The charge of a pointer, which no longer belongs to it. False: the pointer was never charged. */
bool charge_unbind(CUdeviceptr pointer, struct charge *charge);

/* Bytes that the container has charged on a device. Reaps the dead first, at most ten times a second. */
uint64_t charge_used(unsigned device);

#endif
