/* What the test programs call, linked against like an application's: the driver's functions, and the fake card's model time. */
#ifndef PROGRAMS_H
#define PROGRAMS_H

#include <stddef.h>

#include "driver_calls.h"

extern CUresult cuGetExportTable(const void **, const CUuuid *);
extern CUresult cuModuleLoadData(CUmodule *, const void *);
extern CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamEndCapture(CUstream, CUgraph *);
extern CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
extern CUresult cuGraphLaunch(CUgraphExec, CUstream);
extern CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

/* tests/fakegpu/README.md. */
struct model {
    size_t bytes;
    uint64_t (*now_ns)(void);
    void (*sleep_until_ns)(uint64_t wake_ns);
    void (*join)(void);
    void (*leave)(void);
};

/* NULL before cuInit, and on another driver. */
static inline const struct model *model_find(void)
{
    static const CUuuid id = {"\xfa\x4e\x9b\x0c\xc1\x0c\x40\x00\x80\x00"
                              "fakegp"};
    const void *table;
    return cuGetExportTable(&table, &id) == CUDA_SUCCESS ? (const struct model *)table : NULL;
}

#endif
