/* Charging memory to this container before the driver is asked for it, and giving the charge back. */
#ifndef CHARGE_H
#define CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_abi.h"
#include "records.h"

#pragma GCC visibility push(hidden)

/* Managed: the driver may keep it on the host. */
enum charge_kind { CHARGE_DATA, CHARGE_OVERHEAD, CHARGE_MANAGED };

/* Which device pays, as its index in the region (DEVICE_NONE: nothing is counted), and the context that the memory ends with. */
struct payer {
    unsigned device;
    CUcontext context;
};

/* Bytes charged to a device. */
struct charge {
    struct payer payer;
    enum charge_kind kind;
    uint64_t bytes;
};

/* The driver takes memory for pools and graphs in pieces of 2 MiB at least. */
static inline uint64_t charge_whole_pieces(uint64_t bytes)
{
    const uint64_t piece = UINT64_C(2) << 20;
    uint64_t up = bytes + piece - 1;
    return up < bytes ? UINT64_MAX : up / piece * piece;
}

/* The payer by the current context. Else the error to return: the driver's own without a context, CUDA_ERROR_NOT_PERMITTED where
 * the container's share cannot be enforced. */
CUresult charge_current(struct payer *payer);

/* The payer by a device of the driver; no context. Errors as above. */
CUresult charge_device(CUdevice device, struct payer *payer);

/* The payer by a place of memory; nobody for memory of the host. Errors as above. */
CUresult charge_location(CUmemLocation location, struct payer *payer);

/* Charges, in one step, if the container stays within its limit. CUDA_ERROR_OUT_OF_MEMORY: it would not, even with the books
 * settled, which was counted and, at most once a second, said. */
CUresult charge_take(struct charge *charge, struct payer payer, enum charge_kind kind, uint64_t bytes);

/* The same without settling or saying anything. */
bool charge_try(struct charge *charge, struct payer payer, enum charge_kind kind, uint64_t bytes);

void charge_give_back(const struct charge *charge);

/* Makes a charge what the driver says it is by now. What the driver already holds is charged even above the limit. */
void charge_correct(struct charge *charge, uint64_t bytes);

/* Notes in a table that the charge belongs to a name of the driver. False: no memory; the charge stays with the caller. */
bool charge_bind(struct records *records, const struct charge *charge, uint64_t key);

/* Bytes that the container has charged on a device, with this process's own books settled, and the dead reaped at most ten times
 * a second. */
uint64_t charge_used(unsigned device);

/* Bytes that this process has charged on a device, and how often it has charged or given back there. */
uint64_t charge_held(unsigned device);
uint64_t charge_steps(unsigned device);

#pragma GCC visibility pop

#endif
