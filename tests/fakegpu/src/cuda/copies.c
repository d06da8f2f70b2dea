/* The driver's many ways to say copy and fill. Each is a copy of boxes between two sides, submitted to a stream. */
#include "copy.h"
#include "queue.h"
#include "stream.h"

/* A call that waits cannot be recorded. */
static CUresult submit(const char *call, CUstream handle, const CUgraphNodeParams *work, bool wait) {
    struct CUstream_st *stream;
    CUresult result = stream_enter_as(call, handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (wait && stream->capture != NULL) {
        capture_invalidate(stream->capture);
        return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (wait && (result = queue_wait(stream)) != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    return driver_leave(stream_do(stream, work));
}

static CUresult submit_copy(const char *call, CUstream stream, CUDA_MEMCPY3D copy, bool wait) {
    CUgraphNodeParams work = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {.copyParams = copy}};
    return submit(call, stream, &work, wait);
}

static CUresult submit_fill(const char *call, CUstream stream, CUDA_MEMSET_NODE_PARAMS_v2 fill, bool wait) {
    CUgraphNodeParams work = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .memset = fill};
    return submit(call, stream, &work, wait);
}

/* A call, and its variant on the per-thread default stream. */
#define COPY(name, parameters, copy)                                                                                   \
    CUresult name parameters { return submit_copy(#name, NULL, copy, true); }                                          \
    CUresult name##_ptds parameters { return submit_copy(#name, CU_STREAM_PER_THREAD, copy, true); }
#define COPY_ASYNC(name, parameters, copy)                                                                             \
    CUresult name parameters { return submit_copy(#name, stream, copy, false); }                                       \
    CUresult name##_ptsz parameters { return submit_copy(#name, per_thread(stream), copy, false); }
#define FILL(name, parameters, fill)                                                                                   \
    CUresult name parameters { return submit_fill(#name, NULL, fill, true); }                                          \
    CUresult name##_ptds parameters { return submit_fill(#name, CU_STREAM_PER_THREAD, fill, true); }
#define FILL_ASYNC(name, parameters, fill)                                                                             \
    CUresult name parameters { return submit_fill(#name, stream, fill, false); }                                       \
    CUresult name##_ptsz parameters { return submit_fill(#name, per_thread(stream), fill, false); }

static CUDA_MEMCPY3D line(size_t bytes) { return (CUDA_MEMCPY3D){.WidthInBytes = bytes, .Height = 1, .Depth = 1}; }

static CUDA_MEMCPY3D from_host(CUDA_MEMCPY3D copy, const void *from) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    return copy;
}

static CUDA_MEMCPY3D from_device(CUDA_MEMCPY3D copy, CUdeviceptr from) {
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    return copy;
}

static CUDA_MEMCPY3D from_array(CUDA_MEMCPY3D copy, CUarray from, size_t offset) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = from;
    copy.srcXInBytes = offset;
    return copy;
}

static CUDA_MEMCPY3D to_host(CUDA_MEMCPY3D copy, void *to) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    return copy;
}

static CUDA_MEMCPY3D to_device(CUDA_MEMCPY3D copy, CUdeviceptr to) {
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to;
    return copy;
}

static CUDA_MEMCPY3D to_array(CUDA_MEMCPY3D copy, CUarray to, size_t offset) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = to;
    copy.dstXInBytes = offset;
    return copy;
}

static CUDA_MEMCPY3D unified(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUDA_MEMCPY3D copy = line(bytes);
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = from;
    copy.dstDevice = to;
    return copy;
}

static CUDA_MEMCPY3D flat(const CUDA_MEMCPY2D *copy) {
    static const CUDA_MEMCPY2D none;
    copy = copy != NULL ? copy : &none; /* an invalid memory type, refused below */
    return (CUDA_MEMCPY3D){.srcXInBytes = copy->srcXInBytes,
                           .srcY = copy->srcY,
                           .srcMemoryType = copy->srcMemoryType,
                           .srcHost = copy->srcHost,
                           .srcDevice = copy->srcDevice,
                           .srcArray = copy->srcArray,
                           .srcPitch = copy->srcPitch,
                           .dstXInBytes = copy->dstXInBytes,
                           .dstY = copy->dstY,
                           .dstMemoryType = copy->dstMemoryType,
                           .dstHost = copy->dstHost,
                           .dstDevice = copy->dstDevice,
                           .dstArray = copy->dstArray,
                           .dstPitch = copy->dstPitch,
                           .WidthInBytes = copy->WidthInBytes,
                           .Height = copy->Height,
                           .Depth = 1};
}

static CUDA_MEMCPY3D whole(const CUDA_MEMCPY3D *copy) { return copy != NULL ? *copy : (CUDA_MEMCPY3D){.Depth = 0}; }

static CUDA_MEMCPY3D peers(const CUDA_MEMCPY3D_PEER *copy) {
    CUDA_MEMCPY3D same = {.Depth = 0};
    if (copy != NULL) { /* contexts stand where the other has reserved pointers */
        _Static_assert(sizeof *copy == sizeof same, "one layout");
        __builtin_memcpy(&same, copy, sizeof same);
    }
    return same;
}

COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), unified(to, from, bytes))
COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), to_device(from_host(line(bytes), from), to))
COPY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), to_host(from_device(line(bytes), from), to))
COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
     to_device(from_device(line(bytes), from), to))
COPY(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
     to_array(from_device(line(bytes), from), to, offset))
COPY(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
     to_device(from_array(line(bytes), from, offset), to))
COPY(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t bytes),
     to_array(from_host(line(bytes), from), to, offset))
COPY(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t bytes),
     to_host(from_array(line(bytes), from, offset), to))
COPY(cuMemcpyAtoA_v2, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     to_array(from_array(line(bytes), from, from_offset), to, to_offset))
COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), flat(copy))
COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), flat(copy))
COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), whole(copy))
COPY(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), peers(copy))

COPY_ASYNC(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), unified(to, from, bytes))
COPY_ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
           to_device(from_host(line(bytes), from), to))
COPY_ASYNC(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
           to_host(from_device(line(bytes), from), to))
COPY_ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
           to_device(from_device(line(bytes), from), to))
COPY_ASYNC(cuMemcpyHtoAAsync_v2, (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
           to_array(from_host(line(bytes), from), to, offset))
COPY_ASYNC(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
           to_host(from_array(line(bytes), from, offset), to))
COPY_ASYNC(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), flat(copy))
COPY_ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), whole(copy))
COPY_ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), peers(copy))

/* The contexts are those of the two sides, which the addresses tell too. */
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
    (void)to_context;
    (void)from_context;
    return submit_copy(__func__, NULL, to_device(from_device(line(bytes), from), to), true);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
    (void)to_context;
    (void)from_context;
    return submit_copy("cuMemcpyPeer", CU_STREAM_PER_THREAD, to_device(from_device(line(bytes), from), to), true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
    (void)to_context;
    (void)from_context;
    return submit_copy(__func__, stream, to_device(from_device(line(bytes), from), to), false);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                size_t bytes, CUstream stream) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, per_thread(stream));
}

static CUDA_MEMSET_NODE_PARAMS_v2 row(CUdeviceptr to, unsigned value, unsigned element, size_t count) {
    return (CUDA_MEMSET_NODE_PARAMS_v2){
        .dst = to, .value = value, .elementSize = element, .width = count, .height = count != 0};
}

static CUDA_MEMSET_NODE_PARAMS_v2 rows(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
                                       size_t height) {
    return (CUDA_MEMSET_NODE_PARAMS_v2){
        .dst = to, .pitch = pitch, .value = value, .elementSize = element, .width = width, .height = height};
}

FILL(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), row(to, value, 1, count))
FILL(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), row(to, value, 2, count))
FILL(cuMemsetD32_v2, (CUdeviceptr to, unsigned int value, size_t count), row(to, value, 4, count))
FILL(cuMemsetD2D8_v2, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
     rows(to, pitch, value, 1, width, height))
FILL(cuMemsetD2D16_v2, (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
     rows(to, pitch, value, 2, width, height))
FILL(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height),
     rows(to, pitch, value, 4, width, height))

FILL_ASYNC(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
           row(to, value, 1, count))
FILL_ASYNC(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
           row(to, value, 2, count))
FILL_ASYNC(cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
           row(to, value, 4, count))
FILL_ASYNC(cuMemsetD2D8Async,
           (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
           rows(to, pitch, value, 1, width, height))
FILL_ASYNC(cuMemsetD2D16Async,
           (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
           rows(to, pitch, value, 2, width, height))
FILL_ASYNC(cuMemsetD2D32Async,
           (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream),
           rows(to, pitch, value, 4, width, height))
