/* The driver's functions that a test program needs to hold memory, linked against like an application's. */
#ifndef DRIVER_CALLS_H
#define DRIVER_CALLS_H

#include "../src/driver_abi.h"

extern CUresult cuInit(unsigned flags);
extern CUresult cuDeviceGet(CUdevice *device, int ordinal);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
extern CUresult cuCtxSetCurrent(CUcontext context);
extern CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
extern CUresult cuMemFree_v2(CUdeviceptr pointer);

#endif
