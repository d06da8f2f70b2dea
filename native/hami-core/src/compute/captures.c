/* Counts captures, so that a launch need not ask the driver while there is none. A count that is too high (a capturing stream was
 * destroyed) costs a question a launch. */
#include "captures.h"

#include "../driver.h"
#include "../hooks.h"

uint32_t captures_open;

static CUstreamCaptureStatus status_of(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status;
    CUresult result = per_thread ? cuda.cuStreamIsCapturing_ptsz(stream, &status) : cuda.cuStreamIsCapturing(stream, &status);
    return result == CUDA_SUCCESS ? status : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

bool captures_ask(CUstream stream, bool per_thread)
{
    return status_of(stream, per_thread) != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Before the driver begins one: another thread may launch into the stream as soon as it has. */
static void begin(void)
{
    __atomic_fetch_add(&captures_open, 1, __ATOMIC_ACQ_REL);
}

static CUresult begun(CUresult result)
{
    if (result != CUDA_SUCCESS)
        __atomic_fetch_sub(&captures_open, 1, __ATOMIC_ACQ_REL);
    return result;
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
    begin();
    return begun(cuda.cuStreamBeginCapture(hStream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream hStream)
{
    begin();
    return begun(cuda.cuStreamBeginCapture_ptsz(hStream));
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    begin();
    return begun(cuda.cuStreamBeginCapture_v2(hStream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
    begin();
    return begun(cuda.cuStreamBeginCapture_v2_ptsz(hStream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
    begin();
    return begun(cuda.cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData, numDependencies, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode)
{
    begin();
    return begun(cuda.cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData, numDependencies, mode));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                       CUgraphRecaptureCallback callbackFunc, void *userData)
{
    begin();
    return begun(cuda.cuStreamBeginRecaptureToGraph(hStream, mode, hGraph, callbackFunc, userData));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
                                            CUgraphRecaptureCallback callbackFunc, void *userData)
{
    begin();
    return begun(cuda.cuStreamBeginRecaptureToGraph_ptsz(hStream, mode, hGraph, callbackFunc, userData));
}

/* A capture that was invalidated ends with an error, and one that this thread may not end goes on. */
static CUresult end(CUstream stream, bool per_thread, CUgraph *graph, CUresult (*ask)(CUstream, CUgraph *))
{
    bool open = __atomic_load_n(&captures_open, __ATOMIC_ACQUIRE) != 0 && captures_ask(stream, per_thread);
    CUresult result = ask(stream, graph);
    if (open && !captures_ask(stream, per_thread))
        __atomic_fetch_sub(&captures_open, 1, __ATOMIC_ACQ_REL);
    return result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    return end(hStream, false, phGraph, cuda.cuStreamEndCapture);
}

CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
    return end(hStream, true, phGraph, cuda.cuStreamEndCapture_ptsz);
}
