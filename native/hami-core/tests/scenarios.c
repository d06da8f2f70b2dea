/* A program linked against CUDA that takes memory in one way and checks after each step what its container is charged with. The
 * argument names the way; exit status 0 if all was right, else a line on standard output says what was not.
 *
 * The container's limit is 4147 MiB and a context costs 100 MiB; a second card of the same size is there for those that need it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/driver_abi.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* What the scenarios call: all of it is in cuda.h under these names. */
#define CUDA(name, parameters) extern CUresult name parameters;
#define NVML(name, parameters) extern nvmlReturn_t name parameters;
#include "../src/hooks.def"
#include "../src/calls.def"
CUDA(cuCtxSetCurrent, (CUcontext context))
CUDA(cuStreamCreate, (CUstream * stream, unsigned flags))
CUDA(cuStreamSynchronize, (CUstream stream))
CUDA(cuStreamDestroy_v2, (CUstream stream))
CUDA(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device))
CUDA(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value))
CUDA(cuMemAddressReserve, (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags))
CUDA(cuMemExportToShareableHandle, (void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))
CUDA(cuGraphDestroy, (CUgraph graph))
CUDA(cuLibraryGetModule, (CUmodule * module, CUlibrary library))
CUDA(cuModuleGetFunction, (void **function, CUmodule module, const char *name))
CUDA(cuArrayGetSparseProperties, (void *properties, CUarray array))
CUDA(cuMemAllocHost_v2, (void **host, size_t bytes))
CUDA(cuMemFreeHost, (void *host))
CUDA(cuMulticastAddDevice, (CUmemGenericAllocationHandle object, CUdevice device))
CUDA(cuMemSetAccess, (CUdeviceptr address, size_t bytes, const void *description, size_t count))
CUDA(cuDeviceGetDevResource, (CUdevice device, void *resource, int type))
CUDA(cuCtxFromGreenCtx, (CUcontext * made, CUgreenCtx green))
NVML(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t card, unsigned index, nvmlDevice_t *instance))
CUDA(cuDevResourceGenerateDesc, (CUdevResourceDesc * description, void *resources, unsigned count))
#undef CUDA
#undef NVML

#define RIGHT(condition)                                                                                                           \
    do {                                                                                                                           \
        if (!(condition)) {                                                                                                        \
            printf("line %d: %s\n", __LINE__, #condition);                                                                         \
            exit(1);                                                                                                               \
        }                                                                                                                          \
    } while (0)

static void is(int line, const char *what, unsigned long long got, unsigned long long wanted)
{
    if (got != wanted) {
        printf("line %d: %s is %llu (%.3f MiB), not %llu (%.3f MiB)\n", line, what, got, (double)got / MIB, wanted,
               (double)wanted / MIB);
        exit(1);
    }
}

#define IS(got, wanted) is(__LINE__, #got, (unsigned long long)(got), (unsigned long long)(wanted))
#define OK(call) IS(call, CUDA_SUCCESS)

#define FULL CUDA_ERROR_OUT_OF_MEMORY
#define LIMIT (4147 * MIB)
#define CONTEXT (100 * MIB)

static CUdevice device;
static CUcontext context;

/* What the container is charged with on the current context's device, beside one context. */
static size_t charged(void)
{
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    IS(total, LIMIT);
    return total - left - CONTEXT;
}

static void start(void)
{
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

static void linear(void)
{
    CUdeviceptr pointer, other;
    size_t pitch;
    IS(charged(), 0);
    OK(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 300000, 4));
    RIGHT(pitch >= 1000);
    IS(charged(), pitch * 300000);
    OK(cuMemFree_v2(pointer));
    IS(charged(), 0);
    IS(cuMemAllocPitch_v2(&pointer, &pitch, GIB, 5, 4), FULL);
    OK(cuMemAllocManaged(&pointer, 100 * MIB, 1));
    IS(charged(), 100 * MIB);
    IS(cuMemAllocManaged(&other, 4 * GIB, 1), FULL);
    OK(cuMemFree_v2(pointer));
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemFreeAsync(pointer, NULL));
    IS(charged(), 0);
}

/* The first form of the driver's interface, with 32 bits for sizes and addresses. */
static void first_forms(void)
{
    CUDA_ARRAY_DESCRIPTOR_v1 flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {256, 256, 256, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUdeviceptr_v1 pointer;
    CUdeviceptr big;
    CUarray array;
    unsigned pitch;
    OK(cuMemAlloc(&pointer, 10 * MIB));
    IS(charged(), 10 * MIB);
    OK(cuMemFree(pointer));
    IS(charged(), 0);
    OK(cuMemAllocPitch(&pointer, &pitch, 1000, 30000, 4));
    IS(charged(), (size_t)pitch * 30000);
    OK(cuMemFree(pointer));
    OK(cuArrayCreate(&array, &flat));
    RIGHT(charged() >= 16 * MIB);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate(&array, &deep));
    RIGHT(charged() >= 16 * MIB);
    OK(cuArrayDestroy(array));
    IS(charged(), 0);
    OK(cuMemAlloc_v2(&big, 3500 * MIB));
    IS(cuMemAlloc(&pointer, 1 * GIB), FULL);
    IS(cuMemAllocPitch(&pointer, &pitch, 1 << 20, 1 << 10, 4), FULL);
    deep.Depth = 16384;
    IS(cuArray3DCreate(&array, &deep), FULL);
    flat.Width = flat.Height = 16384;
    IS(cuArrayCreate(&array, &flat), FULL);
    IS(charged(), 3500 * MIB);
}

/* Memory of the host is not the card's, and is had where the card's is used up. */
static void host_memory(void)
{
    CUdeviceptr pointer;
    void *host;
    OK(cuMemAlloc_v2(&pointer, LIMIT - CONTEXT));
    OK(cuMemAllocHost_v2(&host, 64 * MIB));
    IS(charged(), LIMIT - CONTEXT);
    OK(cuMemFreeHost(host));
    IS(charged(), LIMIT - CONTEXT);
}

static CUmemoryPool current_pool(void)
{
    CUmemoryPool pool;
    OK(cuDeviceGetMemPool(&pool, device));
    return pool;
}

static size_t pool_holds(CUmemoryPool pool)
{
    cuuint64_t value;
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static void keep_all(CUmemoryPool pool)
{
    cuuint64_t all = (cuuint64_t)1 << 40;
    OK(cuMemPoolSetAttribute(pool, (CUmemPool_attribute)4, &all)); /* RELEASE_THRESHOLD */
}

static void pool_is_charged_with_what_it_holds(void)
{
    CUdeviceptr a, b;
    CUstream stream;
    CUmemoryPool pool = current_pool();
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemAllocAsync(&a, 10 * MIB, stream));
    RIGHT(pool_holds(pool) >= 10 * MIB);
    IS(charged(), pool_holds(pool));
    OK(cuMemAllocAsync_ptsz(&b, 100 * MIB, stream));
    RIGHT(pool_holds(pool) >= 110 * MIB);
    IS(charged(), pool_holds(pool));
    OK(cuMemFreeAsync(a, stream));
    OK(cuMemFreeAsync_ptsz(b, stream));
    OK(cuStreamSynchronize(stream));
    IS(pool_holds(pool), 0);
    IS(charged(), 0);
    keep_all(pool);
    OK(cuMemAllocAsync(&a, 500 * MIB, stream));
    OK(cuMemFree_v2(a));
    OK(cuStreamSynchronize(stream));
    RIGHT(pool_holds(pool) >= 500 * MIB);
    IS(charged(), pool_holds(pool));
    OK(cuMemPoolTrimTo(pool, 0));
    IS(pool_holds(pool), 0);
    IS(charged(), 0);
}

static void pool_is_refused_above_the_limit(void)
{
    CUdeviceptr pointer[64];
    CUstream stream;
    unsigned count = 0;
    CUresult result;
    OK(cuStreamCreate(&stream, 0));
    IS(cuMemAllocAsync(&pointer[0], 5 * GIB, stream), FULL);
    IS(charged(), 0);
    while ((result = cuMemAllocAsync(&pointer[count], 100 * MIB, stream)) == CUDA_SUCCESS)
        count++;
    IS(result, FULL);
    IS(count, 40);
    RIGHT(charged() <= LIMIT - CONTEXT);
    OK(cuMemAllocAsync(&pointer[count], 46 * MIB, stream));
    RIGHT(charged() <= LIMIT - CONTEXT);
}

static void cached_memory_gives_way(void)
{
    CUdeviceptr pointer, other;
    CUstream stream;
    keep_all(current_pool());
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemAllocAsync(&pointer, 3 * GIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamSynchronize(stream));
    RIGHT(charged() >= 3 * GIB);
    OK(cuMemAlloc_v2(&other, 3 * GIB));
    RIGHT(charged() < 4 * GIB);
    OK(cuMemFree_v2(other));
    OK(cuMemAllocAsync(&pointer, 3 * GIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamSynchronize(stream));
    /* Also for another size from the same pool. */
    OK(cuMemAllocAsync(&pointer, 3 * GIB + 512 * MIB, stream));
}

static CUmemPoolProps pool_properties(CUmemLocationType type, int id)
{
    CUmemPoolProps props;
    memset(&props, 0, sizeof(props));
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = type;
    props.location.id = id;
    return props;
}

static void own_pools(void)
{
    CUmemPoolProps props = pool_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemoryPool pool, second;
    CUdeviceptr a, b, small;
    CUcontext other;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync_ptsz(&b, 20 * MIB, pool, NULL));
    IS(charged(), pool_holds(pool));
    IS(cuMemAllocFromPoolAsync(&a + 0, 5 * GIB, pool, NULL), FULL);
    /* Destroyed, it lives on until the last pointer is freed. */
    OK(cuMemPoolDestroy(pool));
    RIGHT(charged() >= 60 * MIB);
    OK(cuMemPoolCreate(&second, &props));
    OK(cuMemPoolDestroy(second));
    OK(cuMemPoolCreate(&second, &props));
    OK(cuMemAllocFromPoolAsync(&small, 4315, second, NULL));
    size_t without = charged() - pool_holds(second);
    OK(cuMemPoolDestroy(second));
    /* A whole piece, though the pointer is of 4315 bytes. */
    IS(charged(), without + 2 * MIB);
    OK(cuMemFreeAsync(small, NULL));
    OK(cuMemPoolCreate(&second, &props));
    OK(cuMemFreeAsync(a, NULL));
    RIGHT(charged() >= 20 * MIB);
    OK(cuMemFreeAsync(b, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(charged(), 0);
    /* Or until the primary context ends. */
    OK(cuMemAllocFromPoolAsync(&a, 40 * MIB, second, NULL));
    OK(cuMemPoolDestroy(second));
    OK(cuCtxCreate_v2(&other, 0, device));
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxSetCurrent(context));
    RIGHT(charged() >= 40 * MIB);
    OK(cuCtxCreate_v2(&other, 0, device));
    OK(cuDevicePrimaryCtxReset_v2(device));
    IS(charged(), 0);
}

/* The pool's card pays, whichever stream or context is used; `others` is current in the end. */
static void is_paid_by_the_pools_card(CUmemoryPool pool, CUcontext others)
{
    CUdeviceptr pointer;
    OK(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    IS(charged(), 0);
    OK(cuCtxSetCurrent(others));
    IS(charged(), pool_holds(pool));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(charged(), 0);
}

static void pools_of_the_other_card(void)
{
    CUmemPoolProps props;
    CUdevice other;
    CUcontext others;
    CUmemoryPool pool;
    CUdeviceptr pointer;
    CUstream stream;
    OK(cuDeviceGet(&other, 1));
    OK(cuDevicePrimaryCtxRetain(&others, other));
    props = pool_properties(CU_MEM_LOCATION_TYPE_DEVICE, other);
    OK(cuMemPoolCreate(&pool, &props));
    is_paid_by_the_pools_card(pool, others);
    /* The stream's card pays, whichever context is current. */
    OK(cuStreamCreate(&stream, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync(&pointer, 64 * MIB, stream));
    IS(charged(), 0);
    OK(cuCtxSetCurrent(others));
    RIGHT(charged() >= 64 * MIB);
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamSynchronize(stream));
    IS(charged(), 0);
}

/* A card's default pool is no call's. */
static void the_default_pool_of_the_other_card(void)
{
    CUdevice other;
    CUcontext others;
    CUmemoryPool pool;
    OK(cuDeviceGet(&other, 1));
    OK(cuDevicePrimaryCtxRetain(&others, other));
    OK(cuDeviceGetDefaultMemPool(&pool, other));
    is_paid_by_the_pools_card(pool, others);
}

static CUgraph graph_that_takes(size_t bytes)
{
    CUdeviceptr pointer;
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&pointer, bytes, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamDestroy_v2(stream));
    return graph;
}

/* Each way to make a graph ready: what it takes is charged when it is launched or uploaded, and not above the limit. */
static void every_way_to_instantiate(void)
{
    CUgraph graph = graph_that_takes(300 * MIB), big = graph_that_takes(5 * GIB);
    for (unsigned way = 0; way < 6; way++) {
        CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 0}, upload = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
        CUgraphExec exec[2];
        for (unsigned i = 0; i < 2; i++) {
            CUgraph made = i == 0 ? graph : big;
            CUresult result = CUDA_SUCCESS;
            switch (way) {
            case 0: result = cuGraphInstantiate(&exec[i], made, NULL, NULL, 0); break;
            case 1: result = cuGraphInstantiate_v2(&exec[i], made, NULL, NULL, 0); break;
            case 2: result = cuGraphInstantiateWithParams(&exec[i], made, &params); break;
            case 3: result = cuGraphInstantiateWithParams_ptsz(&exec[i], made, &params); break;
            case 4: result = cuGraphInstantiateWithParams(&exec[i], made, &upload); break;
            case 5: result = cuGraphInstantiateWithParams_ptsz(&exec[i], made, &upload); break;
            }
            bool uploads = way >= 4;
            IS(result, uploads && i == 1 ? FULL : CUDA_SUCCESS);
            IS(upload.flags, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
            IS(charged(), uploads ? 300 * MIB : 0);
        }
        IS(upload.result_out, way >= 4 ? CUDA_GRAPH_INSTANTIATE_ERROR : 0);
        OK(cuGraphUpload_ptsz(exec[0], NULL));
        IS(charged(), 300 * MIB);
        OK(cuGraphLaunch(exec[0], NULL));
        OK(cuStreamSynchronize(NULL));
        OK(cuGraphExecDestroy(exec[0]));
        if (way < 4) {
            IS(cuGraphUpload_ptsz(exec[1], NULL), FULL);
            OK(cuGraphExecDestroy(exec[1]));
        }
        OK(cuDeviceGraphMemTrim(device));
        IS(charged(), 0);
    }
}

static void graphs(void)
{
    CUstream stream;
    CUdeviceptr pointer, big;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&pointer, 300 * MIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    IS(charged(), 0);
    OK(cuMemAlloc_v2(&big, 3 * GIB + 800 * MIB));
    IS(cuGraphLaunch(exec, stream), FULL);
    IS(cuGraphUpload(exec, stream), FULL);
    IS(charged(), 3 * GIB + 800 * MIB);
    OK(cuMemFree_v2(big));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch_ptsz(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(charged(), 300 * MIB);
    /* What graphs keep and do not use gives way. */
    OK(cuMemAlloc_v2(&big, 3 * GIB + 900 * MIB));
    OK(cuMemFree_v2(big));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(charged(), 300 * MIB);
    OK(cuDeviceGraphMemTrim(device));
    IS(charged(), 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    /* Captured, an allocation takes nothing and is not refused; its launch is. */
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&pointer, 5 * GIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    IS(cuGraphLaunch(exec, stream), FULL);
    IS(charged(), 0);
}

/* Nothing that the library asks of the driver may ruin another's capture in global mode. */
static void captures_are_left_alone(void)
{
    CUstream stream, other;
    CUdeviceptr pointer;
    CUgraph graph;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamCreate(&other, 0));
    OK(cuMemAllocAsync(&pointer, 10 * MIB, other));
    OK(cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)0));
    charged();
    OK(cuMemAllocAsync(&pointer, 10 * MIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    /* A refusal has pools and graphs trimmed, which the driver counts as unsafe. */
    IS(cuMemAllocAsync(&pointer, 5 * GIB, other), FULL);
    OK(cuStreamEndCapture(stream, &graph));
    RIGHT(graph != NULL);
}

/* What NVML lists for this process on the first card, of so many that it lists, which is the same by each of its functions. */
static unsigned long long own_process_by_nvml(unsigned wanted)
{
    nvmlDevice_t card;
    nvmlProcessInfo_v1_t small[16];
    nvmlProcessInfo_v2_t found[16];
    unsigned count = 0, room = 16;
    unsigned long long bytes = 0;
    IS(nvmlInit_v2(), 0);
    IS(nvmlDeviceGetHandleByIndex_v2(0, &card), 0);
    IS(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    IS(count, wanted);
    IS(nvmlDeviceGetComputeRunningProcesses_v3(card, &room, found), 0);
    IS(room, wanted);
    for (unsigned i = 0; i < wanted; i++)
        if (found[i].pid == (unsigned)getpid())
            bytes = found[i].usedGpuMemory;
    nvmlProcessInfo_v2_t again[16];
    IS(nvmlDeviceGetComputeRunningProcesses_v2(card, &(unsigned){16}, again), 0);
    IS(nvmlDeviceGetComputeRunningProcesses(card, &(unsigned){16}, small), 0);
    for (unsigned i = 0; i < wanted; i++) {
        RIGHT(again[i].pid == found[i].pid && again[i].usedGpuMemory == found[i].usedGpuMemory);
        RIGHT(small[i].pid == found[i].pid && small[i].usedGpuMemory == found[i].usedGpuMemory);
        RIGHT(found[i].gpuInstanceId == 0xffffffff && found[i].computeInstanceId == 0xffffffff);
    }
    return bytes;
}

/* Processes that draw, and those of MPS: none that is this container's. */
static void no_others_by_nvml(void)
{
    nvmlDevice_t card;
    nvmlProcessInfo_v1_t small[1];
    nvmlProcessInfo_v2_t large[1];
    unsigned counts[6] = {1, 1, 1, 1, 1, 1};
    IS(nvmlDeviceGetHandleByIndex_v2(0, &card), 0);
    IS(nvmlDeviceGetGraphicsRunningProcesses(card, &counts[0], small), 0);
    IS(nvmlDeviceGetGraphicsRunningProcesses_v2(card, &counts[1], large), 0);
    IS(nvmlDeviceGetGraphicsRunningProcesses_v3(card, &counts[2], large), 0);
    IS(nvmlDeviceGetMPSComputeRunningProcesses(card, &counts[3], small), 0);
    IS(nvmlDeviceGetMPSComputeRunningProcesses_v2(card, &counts[4], large), 0);
    IS(nvmlDeviceGetMPSComputeRunningProcesses_v3(card, &counts[5], large), 0);
    for (unsigned i = 0; i < 6; i++)
        IS(counts[i], 0);
}

/* All that such a child asks fails, and it must not use its parent's slot on the way. */
static void children_of_a_running_program_leave_its_books_alone(void)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    int status;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    pid_t child = fork();
    /* What would not fit is the driver's to refuse too. */
    if (child == 0 && cuMemCreate(&handle, 5 * GIB, &prop, 0) != 3)
        _exit(1);
    for (unsigned i = 0; i < 200000; i++) {
        if (child == 0) {
            if (cuMemCreate(&handle, 2 * MIB, &prop, 0) == CUDA_SUCCESS)
                _exit(1);
        } else {
            OK(cuMemAlloc_v2(&pointer, 2 * MIB));
            OK(cuMemFree_v2(pointer));
        }
    }
    if (child == 0)
        _exit(0);
    RIGHT(waitpid(child, &status, 0) == child && status == 0);
    IS(charged(), 0);
    IS(own_process_by_nvml(1), CONTEXT);
}

/* As a program does that closes all it did not open, and opens a file of its own under such a number. */
static void close_the_lock_file(void)
{
    char link[64], path[512];
    int own = open("/dev/null", O_RDONLY);
    bool closed = false;
    for (int file = 3; file < own; file++) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
        ssize_t length = readlink(link, path, sizeof(path) - 1);
        path[length > 0 ? length : 0] = '\0';
        if (strstr(path, "/usage.lock"))
            closed = dup2(own, file) == file;
    }
    RIGHT(closed);
}

static void nvml_lists_the_containers_processes(void)
{
    CUdeviceptr pointer;
    OK(cuMemAlloc_v2(&pointer, 300 * MIB));
    IS(own_process_by_nvml(1), CONTEXT + 300 * MIB);
    int ready[2], done[2];
    char byte;
    RIGHT(pipe(ready) == 0 && pipe(done) == 0);
    /* A second process of the container. */
    if (fork() == 0) {
        dup2(ready[1], 1);
        dup2(done[0], 0);
        close(done[1]);
        execl("/proc/self/exe", "scenarios", "hold_some", (char *)NULL);
        _exit(1);
    }
    RIGHT(read(ready[0], &byte, 1) == 1);
    IS(own_process_by_nvml(2), CONTEXT + 300 * MIB);
    close_the_lock_file();
    IS(own_process_by_nvml(2), CONTEXT + 300 * MIB);
    close(done[1]);
    wait(NULL);
    IS(own_process_by_nvml(1), CONTEXT + 300 * MIB);
    no_others_by_nvml();
}

static void hold_some(void)
{
    CUdeviceptr pointer;
    char byte;
    OK(cuMemAlloc_v2(&pointer, 200 * MIB));
    RIGHT(write(1, "r", 1) == 1);
    RIGHT(read(0, &byte, 1) == 0);
}

static CUmemAllocationProp allocation_properties(CUmemLocationType type, int id)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)1; /* a file descriptor */
    prop.location.type = type;
    prop.location.id = id;
    return prop;
}

static void virtual_memory(void)
{
    CUmemAllocationProp prop = allocation_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemGenericAllocationHandle handle, second, same;
    CUdeviceptr address;
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
    IS(charged(), 64 * MIB);
    IS(cuMemCreate(&second, 4 * GIB, &prop, 0), FULL);
    OK(cuMemAddressReserve(&address, 512 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    IS(charged(), 64 * MIB);
    OK(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)address));
    OK(cuMemUnmap(address, 64 * MIB));
    IS(charged(), 64 * MIB);
    OK(cuMemRelease(same));
    IS(charged(), 0);
    /* One unmap may cover several mappings, of several handles. */
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
    OK(cuMemCreate(&second, 32 * MIB, &prop, 0));
    OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
    OK(cuMemMap(address + 64 * MIB, 32 * MIB, 0, second, 0));
    OK(cuMemMap(address + 96 * MIB, 64 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(second));
    OK(cuMemUnmap(address + 64 * MIB, 96 * MIB));
    IS(charged(), 64 * MIB);
    OK(cuMemUnmap(address, 64 * MIB));
    IS(charged(), 0);
    /* Memory of the host is not the card's. */
    prop = allocation_properties((CUmemLocationType)3, 0);
    CUresult host = cuMemCreate(&handle, 64 * MIB, &prop, 0);
    IS(charged(), 0);
    if (host == CUDA_SUCCESS)
        OK(cuMemRelease(handle));
    IS(charged(), 0);
}

static void imported_handles_are_the_exporters(void)
{
    CUmemAllocationProp prop = allocation_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemGenericAllocationHandle handle, imported;
    int file = -1;
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&file, handle, 1, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)file, (CUmemAllocationHandleType)1));
    IS(charged(), 64 * MIB);
    OK(cuMemRelease(handle));
    IS(charged(), 64 * MIB);
    OK(cuMemRelease(imported));
    IS(charged(), 0);
}

static void arrays(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUDA_ARRAY3D_DESCRIPTOR deep = {256, 256, 256, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUDA_ARRAY3D_DESCRIPTOR huge = {16384, 16384, 8, CU_AD_FORMAT_FLOAT, 4, 0};
    CUarray array;
    CUmipmappedArray mipmap;
    OK(cuArrayCreate_v2(&array, &flat));
    RIGHT(charged() >= 16 * MIB);
    OK(cuArrayDestroy(array));
    IS(charged(), 0);
    OK(cuArray3DCreate_v2(&array, &deep));
    RIGHT(charged() >= 16 * MIB);
    IS(cuArray3DCreate_v2(&(CUarray){NULL}, &huge), FULL);
    OK(cuArrayDestroy(array));
    IS(charged(), 0);
    OK(cuMipmappedArrayCreate(&mipmap, &deep, 4));
    RIGHT(charged() >= 16 * MIB);
    OK(cuMipmappedArrayDestroy(mipmap));
    IS(charged(), 0);
    deep.Flags = CUDA_ARRAY3D_SPARSE;
    OK(cuArray3DCreate_v2(&array, &deep));
    IS(charged(), 0);
    OK(cuArrayDestroy(array));
}

/* What was mapped into a sparse array stays until the piece is mapped to something else, unmapped, or the array ends. */
static void sparse_arrays(void)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {1024, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE};
    CUmemAllocationProp prop = allocation_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemGenericAllocationHandle handle, second;
    struct {
        unsigned extent[3], rest[32];
    } tile;
    CUarrayMapInfo map;
    CUarray array;
    OK(cuArray3DCreate_v2(&array, &descriptor));
    OK(cuArrayGetSparseProperties(&tile, array));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    prop.allocFlags[2] = 1; /* usage: CU_MEM_CREATE_USAGE_TILE_POOL */
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    IS(charged(), 2 * MIB);
    memset(&map, 0, sizeof(map));
    map.resource.array = array;
    map.subresource.sparseLevel.extentWidth = tile.extent[0];
    map.subresource.sparseLevel.extentHeight = tile.extent[1];
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandle.memHandle = handle;
    map.deviceBitMask = 1u << device;
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    OK(cuMemMapArrayAsync_ptsz(&map, 1, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemRelease(handle));
    IS(charged(), 2 * MIB);
    OK(cuMemCreate(&second, 4 * MIB, &prop, 0));
    map.memHandle.memHandle = second;
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    IS(charged(), 4 * MIB);
    map.subresource.sparseLevel.offsetX = tile.extent[0];
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    OK(cuMemRelease(second));
    map.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    IS(charged(), 4 * MIB);
    map.subresource.sparseLevel.offsetX = 0;
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    IS(charged(), 0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    map.memHandle.memHandle = handle;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    OK(cuMemRelease(handle));
    IS(charged(), 2 * MIB);
    OK(cuArrayDestroy(array));
    IS(charged(), 0);
}

static void multicast_objects(void)
{
    CUmemAllocationProp prop = allocation_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    struct {
        unsigned devices;
        size_t size;
        unsigned long long handle_types, flags;
    } object = {2, 64 * MIB, 0, 0};
    CUmemGenericAllocationHandle multicast, handle, second;
    CUdeviceptr address;
    OK(cuMulticastCreate(&multicast, (const CUmulticastObjectProp *)&object));
    OK(cuMulticastAddDevice(multicast, 0));
    OK(cuMulticastAddDevice(multicast, 1));
    IS(charged(), 0);
    OK(cuMemCreate(&handle, 32 * MIB, &prop, 0));
    OK(cuMulticastBindMem(multicast, 0, handle, 0, 32 * MIB, 0));
    OK(cuMemRelease(handle));
    IS(charged(), 32 * MIB);
    OK(cuMemCreate(&second, 32 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&address, 32 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 32 * MIB, 0, second, 0));
    OK(cuMemSetAccess(address, 32 * MIB, &(struct { CUmemLocation location; int flags; }){prop.location, 3}, 1));
    OK(cuMulticastBindAddr(multicast, 32 * MIB, address, 32 * MIB, 0));
    OK(cuMemUnmap(address, 32 * MIB));
    OK(cuMemRelease(second));
    IS(charged(), 64 * MIB);
    OK(cuMulticastUnbind(multicast, device, 0, 32 * MIB));
    IS(charged(), 32 * MIB);
    OK(cuMulticastUnbind(multicast, device, 32 * MIB, 32 * MIB));
    IS(charged(), 0);
    /* Each device has places of its own. */
    prop.location.id = 1;
    OK(cuMemCreate(&second, 32 * MIB, &prop, 0));
    prop.location.id = 0;
    OK(cuMemCreate(&handle, 32 * MIB, &prop, 0));
    OK(cuMulticastBindMem(multicast, 0, handle, 0, 32 * MIB, 0));
    OK(cuMulticastBindMem_v2(multicast, 1, 0, second, 0, 32 * MIB, 0));
    OK(cuMemRelease(handle));
    OK(cuMulticastUnbind(multicast, 1, 0, 32 * MIB));
    IS(charged(), 32 * MIB);
    OK(cuMemCreate(&handle, 32 * MIB, &prop, 0));
    OK(cuMemMap(address, 32 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(address, 32 * MIB, &(struct { CUmemLocation location; int flags; }){prop.location, 3}, 1));
    OK(cuMulticastBindAddr_v2(multicast, device, 32 * MIB, address, 32 * MIB, 0));
    OK(cuMemUnmap(address, 32 * MIB));
    OK(cuMemRelease(handle));
    IS(charged(), 64 * MIB);
    OK(cuMulticastUnbind(multicast, device, 32 * MIB, 32 * MIB));
    IS(charged(), 32 * MIB);
    /* It ends with its last handle and mapping, and what is bound to it with it. */
    OK(cuMemMap(address, 32 * MIB, 0, multicast, 0));
    OK(cuMemRelease(multicast));
    IS(charged(), 32 * MIB);
    OK(cuMemUnmap(address, 32 * MIB));
    IS(charged(), 0);
}

/* A green context keeps the primary one alive. */
static void green_contexts(void)
{
    unsigned char resource[2048];
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUcontext second;
    CUdeviceptr pointer;
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuCtxSetCurrent(second));
    IS(charged(), CONTEXT);
    OK(cuDeviceGetDevResource(device, resource, 1));
    OK(cuDevResourceGenerateDesc(&description, resource, 1));
    OK(cuGreenCtxCreate(&green, description, device, 1));
    IS(charged(), CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), CONTEXT);
    OK(cuGreenCtxDestroy(green));
    IS(charged(), 0);
    OK(cuGreenCtxCreate(&green, description, device, 1));
    IS(charged(), CONTEXT);
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    /* What was allocated while it was current ends with the primary context, not with it. */
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    OK(cuCtxSetCurrent(second));
    OK(cuGreenCtxDestroy(green));
    IS(charged(), CONTEXT + 6 * MIB);
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 2 * MIB);
}

static void contexts(void)
{
    CUcontext second, third;
    CUdeviceptr pointer, filler;
    CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 4};
    CUarray array;
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), CONTEXT);
    OK(cuMemAlloc_v2(&pointer, 50 * MIB));
    OK(cuArrayCreate_v2(&array, &flat));
    RIGHT(charged() >= CONTEXT + 66 * MIB);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 0);
    /* A context that does not fit is refused. */
    OK(cuMemAlloc_v2(&filler, LIMIT - CONTEXT - 51 * MIB));
    IS(cuCtxCreate_v2(&third, 0, device), FULL);
    OK(cuMemFree_v2(filler));
    /* The primary one goes with the last who retains it, and what was allocated in it with it. */
    OK(cuDevicePrimaryCtxRetain(&second, device));
    RIGHT(second == context);
    IS(charged(), 0);
    OK(cuMemAlloc_v2(&pointer, 50 * MIB));
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 50 * MIB);
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 0);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    IS(charged(), CONTEXT);
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, 50 * MIB));
    OK(cuMemAllocAsync(&filler, 64 * MIB, NULL));
    OK(cuCtxSetCurrent(second));
    OK(cuDevicePrimaryCtxReset_v2(device));
    IS(charged(), 0);
    IS(cuMemFreeAsync(filler, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(charged(), 0);
    OK(cuMemAllocAsync(&filler, 64 * MIB, NULL));
    RIGHT(charged() >= 64 * MIB);
}

static void every_form_of_a_context(void)
{
    CUcontext second, same;
    CUdeviceptr pointer;
    OK(cuCtxCreate(&second, 0, device));
    OK(cuCtxAttach(&same, 0));
    RIGHT(same == second);
    OK(cuCtxDetach(second));
    IS(charged(), CONTEXT);
    OK(cuMemAlloc_v2(&pointer, 50 * MIB));
    OK(cuCtxDetach(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 0);
    OK(cuCtxCreate_v3(&second, NULL, 0, 0, device));
    IS(charged(), CONTEXT);
    OK(cuCtxDestroy(second));
    OK(cuCtxCreate_v4(&second, NULL, 0, device));
    OK(cuCtxSetCurrent(context));
    IS(charged(), CONTEXT);
    /* One context is what charged() leaves out. */
    OK(cuDevicePrimaryCtxRelease(device));
    OK(cuCtxSetCurrent(second));
    IS(charged(), 0);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, 50 * MIB));
    OK(cuCtxSetCurrent(second));
    IS(charged(), CONTEXT + 50 * MIB);
    OK(cuDevicePrimaryCtxReset(device));
    IS(charged(), 0);
}

/* PTX with a variable of 64 MiB. */
static const char code[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                           ".visible .global .align 4 .b8 table[67108864];\n"
                           ".visible .entry nothing()\n{\nret;\n}\n";

static void modules(void)
{
    CUmodule module;
    CUlibrary library;
    OK(cuModuleLoadData(&module, code));
    size_t loaded = charged();
    RIGHT(loaded >= 64 * MIB && loaded <= 70 * MIB);
    OK(cuModuleUnload(module));
    IS(charged(), 0);
    OK(cuModuleLoadDataEx(&module, code, 0, NULL, NULL));
    IS(charged(), loaded);
    OK(cuModuleUnload(module));
    IS(charged(), 0);
    OK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryUnload(library));
    IS(charged(), 0);
    for (unsigned i = 0; i < 100; i++) {
        OK(cuModuleLoadData(&module, code));
        OK(cuModuleUnload(module));
    }
    IS(charged(), 0);
    OK(cuModuleLoadFatBinary(&module, code));
    IS(charged(), loaded);
    OK(cuModuleUnload(module));
    char path[64];
    int file = memfd_create("code", 0);
    RIGHT(file >= 0 && write(file, code, strlen(code)) == (ssize_t)strlen(code));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    OK(cuModuleLoad(&module, path));
    IS(charged(), loaded);
    OK(cuModuleUnload(module));
    OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetModule(&module, library));
    OK(cuLibraryUnload(library));
    IS(charged(), 0);
    /* Without a context it is nobody's yet. */
    OK(cuCtxSetCurrent(NULL));
    OK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 0);
    OK(cuLibraryUnload(library));
    IS(charged(), 0);
}

/* Memory that is charged and not on the card must not hide what a module takes. */
static void managed_memory_hides_no_module(void)
{
    CUmodule module;
    CUdeviceptr pointer;
    OK(cuModuleLoadData(&module, code));
    size_t loaded = charged();
    OK(cuModuleUnload(module));
    OK(cuMemAllocManaged(&pointer, 108 * MIB, 1));
    OK(cuModuleLoadData(&module, code));
    IS(charged(), 108 * MIB + loaded);
    OK(cuModuleUnload(module));
    OK(cuMemFree_v2(pointer));
    IS(charged(), 0);
}

static void modules_end_with_their_context(void)
{
    CUmodule module;
    CUcontext second;
    OK(cuModuleLoadData(&module, code));
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 0);
}

/* Code that the driver loads at the first launch, without a call that could be seen. */
static void late_code_is_found_before_a_refusal(void)
{
    CUmodule module;
    void *function;
    CUdeviceptr pointer;
    OK(cuModuleLoadData(&module, code));
    size_t loaded = charged();
    OK(cuModuleGetFunction(&function, module, "nothing"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(charged(), loaded);
    IS(cuMemAlloc_v2(&pointer, 5 * GIB), FULL);
    RIGHT(charged() > loaded);
    IS(charged() + CONTEXT, own_process_by_nvml(1));
    OK(cuModuleUnload(module));
    IS(charged(), 0);
}

/* The driver takes whole pieces of 2 MiB, and a refusal finds what is charged too little for that. */
static void what_was_found_goes_with_what_it_belonged_to(void)
{
    enum { COUNT = 20 };
    CUdeviceptr pointer[COUNT], refused;
    CUmodule module;
    CUlibrary library;
    CUcontext second;
    void *function;
    for (unsigned i = 0; i < COUNT; i++)
        OK(cuMemAlloc_v2(&pointer[i], 3 * MIB));
    /* What is found anyway is not taken for the cost of what is made meanwhile. */
    OK(cuModuleLoadData(&module, code));
    size_t loaded = charged() - COUNT * 3 * MIB;
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), COUNT * 3 * MIB + loaded + CONTEXT);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(cuMemAlloc_v2(&refused, 5 * GIB), FULL);
    IS(charged(), COUNT * 4 * MIB + loaded);
    OK(cuModuleUnload(module));
    IS(charged(), COUNT * 4 * MIB);
    for (unsigned i = 0; i < COUNT; i++) {
        OK(cuMemFree_v2(pointer[i]));
        IS(charged(), (COUNT - i - 1) * 4 * MIB);
    }
    OK(cuMemAlloc_v2(&pointer[0], 3 * MIB));
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuMemAlloc_v2(&pointer[1], 3 * MIB));
    IS(cuMemAlloc_v2(&refused, 5 * GIB), FULL);
    IS(charged(), 8 * MIB + CONTEXT);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 4 * MIB);
    OK(cuMemFree_v2(pointer[0]));
    /* A library's code too, in whichever context it was used. */
    OK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetModule(&module, library));
    OK(cuModuleGetFunction(&function, module, "nothing"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(cuMemAlloc_v2(&refused, 5 * GIB), FULL);
    RIGHT(charged() > 0);
    OK(cuLibraryUnload(library));
    IS(charged(), 0);
    /* Managed memory hides what is there: then nothing is charged that was only found. */
    OK(cuMemAlloc_v2(&pointer[0], 3 * MIB));
    IS(cuMemAlloc_v2(&refused, 5 * GIB), FULL);
    IS(charged(), 4 * MIB);
    OK(cuMemAllocManaged(&pointer[1], 10 * MIB, 1));
    OK(cuMemFree_v2(pointer[0]));
    IS(charged(), 10 * MIB);
}

/* NVML does not tell of this process at first, and the estimate for this card is more than a context takes. */
static void an_estimate_gives_way_to_what_nvml_says(void)
{
    CUcontext second;
    CUdeviceptr pointer;
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    IS(charged(), 2 * MIB);
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), CONTEXT + 2 * MIB);
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 0);
}

/* NVML never tells, and a context is taken for one of 520 MiB. */
static void estimates_go_with_their_contexts(void)
{
    const size_t more = 420 * MIB;
    CUcontext second;
    IS(charged(), more);
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), 2 * more + CONTEXT);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), more);
}

/* NVML tells once the second of two estimated contexts is gone. */
static void an_estimate_that_is_gone_counts_no_more(void)
{
    CUcontext second;
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 0);
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(charged(), 0);
}

static void *use_a_pool(void *nothing)
{
    CUmemPoolProps props = pool_properties(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemoryPool pool;
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(context));
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&pointer, 2 * MIB, pool, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuMemPoolDestroy(pool));
    return nothing;
}

/* A pool takes more than was asked of it, which is charged a moment later; nobody may take that for overhead meanwhile. The driver
 * answers slowly here, so that the moment is long. */
static void pools_that_grow_are_no_overhead(void)
{
    CUdeviceptr refused;
    for (unsigned i = 0; i < 100; i++) {
        pthread_t thread;
        RIGHT(pthread_create(&thread, NULL, use_a_pool, NULL) == 0);
        usleep(i % 20 * 100);
        IS(cuMemAlloc_v2(&refused, 5 * GIB), FULL);
        RIGHT(pthread_join(thread, NULL) == 0);
        IS(charged(), 0);
    }
}

static void limits_of_a_context_are_charged_while_they_hold(void)
{
    enum { MALLOC_HEAP_SIZE = 2 };
    CUcontext second;
    CUdeviceptr pointer;
    OK(cuCtxSetLimit((CUlimit)MALLOC_HEAP_SIZE, 208 * MIB));
    IS(charged(), 200 * MIB);
    OK(cuCtxSetLimit((CUlimit)MALLOC_HEAP_SIZE, 108 * MIB));
    IS(charged(), 100 * MIB);
    OK(cuMemAllocManaged(&pointer, 64 * MIB, 1));
    OK(cuCtxSetLimit((CUlimit)MALLOC_HEAP_SIZE, 308 * MIB));
    IS(charged(), 364 * MIB);
    OK(cuMemFree_v2(pointer));
    OK(cuCtxCreate_v2(&second, 0, device));
    OK(cuCtxSetLimit((CUlimit)MALLOC_HEAP_SIZE, 58 * MIB));
    IS(charged(), 350 * MIB + CONTEXT);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(context));
    IS(charged(), 300 * MIB);
    OK(cuCtxSetLimit((CUlimit)MALLOC_HEAP_SIZE, 8 * MIB));
    IS(charged(), 0);
}

static void graph_memory_ends_with_the_primary_context(void)
{
    CUstream stream;
    CUdeviceptr pointer;
    CUgraph graph;
    CUgraphExec exec;
    CUcontext second;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&pointer, 300 * MIB, stream));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(charged(), 300 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(device));
    /* Nothing hides what the next context takes. */
    OK(cuDevicePrimaryCtxRetain(&context, device));
    IS(own_process_by_nvml(1), CONTEXT);
    OK(cuCtxSetCurrent(context));
    IS(charged(), 0);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuCtxCreate_v2(&second, 0, device));
    IS(charged(), 300 * MIB + CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(device));
    IS(own_process_by_nvml(1), CONTEXT);
    IS(charged(), 0);
}

static void devices(void)
{
    CUdevice other;
    CUcontext others;
    CUdeviceptr here, there;
    size_t total;
    OK(cuDeviceGet(&other, 1));
    OK(cuDeviceTotalMem_v2(&total, other));
    IS(total, LIMIT);
    OK(cuDevicePrimaryCtxRetain(&others, other));
    OK(cuMemAlloc_v2(&here, 4 * GIB - 100 * MIB));
    OK(cuCtxSetCurrent(others));
    IS(charged(), 0);
    OK(cuMemAlloc_v2(&there, 1 * GIB));
    IS(charged(), 1 * GIB);
    IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 4 * GIB), FULL);
    /* Freed from the other card's context. */
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(there));
    IS(charged(), 4 * GIB - 100 * MIB);
    OK(cuCtxSetCurrent(others));
    IS(charged(), 0);
}

static void null_pointers_are_the_drivers_business(void)
{
    CUstream stream;
    size_t pitch;
    OK(cuStreamCreate(&stream, 0));
    IS(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocManaged(NULL, MIB, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocPitch_v2(NULL, &pitch, 100, 100, 4), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocAsync(NULL, MIB, stream), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocFromPoolAsync(&(CUdeviceptr){0}, MIB, NULL, stream), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocFromPoolAsync_ptsz(&(CUdeviceptr){0}, MIB, NULL, stream), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(NULL, MIB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuArrayCreate_v2(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemPoolCreate(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuDeviceTotalMem_v2(NULL, device), CUDA_ERROR_INVALID_VALUE);
    IS(cuGraphInstantiateWithParams(&(CUgraphExec){NULL}, graph_that_takes(2 * MIB), NULL), CUDA_ERROR_INVALID_VALUE);
    nvmlDevice_t card;
    IS(nvmlInit_v2(), NVML_SUCCESS);
    IS(nvmlDeviceGetHandleByIndex_v2(0, &card), NVML_SUCCESS);
    IS(nvmlDeviceGetMemoryInfo(card, NULL), NVML_ERROR_INVALID_ARGUMENT);
    IS(nvmlDeviceGetMemoryInfo_v2(card, NULL), NVML_ERROR_INVALID_ARGUMENT);
    IS(nvmlDeviceGetComputeRunningProcesses_v2(card, NULL, NULL), NVML_ERROR_INVALID_ARGUMENT);
    IS(charged(), 0);
}

/* Much of everything, in an order that repeats: the books end where they began. */

/* A graph whose memory the program frees, or another graph. */
static CUgraphExec graph_that_leaves(size_t bytes, CUdeviceptr *pointer)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(pointer, bytes, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 1)); /* what is left is freed when it is launched again */
    OK(cuStreamDestroy_v2(stream));
    return exec;
}

static void memory_that_outlives_its_graph(void)
{
    CUdeviceptr first_pointer, second_pointer;
    CUstream stream;
    CUgraph graph;
    CUgraphExec first = graph_that_leaves(2 * GIB, &first_pointer), second = graph_that_leaves(2 * GIB, &second_pointer), freeing;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemFreeAsync(second_pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&freeing, graph, 0));
    OK(cuGraphLaunch(first, stream));
    OK(cuGraphLaunch(first, stream));
    IS(charged(), 2 * GIB);
    IS(cuGraphLaunch(second, stream), FULL);
    IS(charged(), 2 * GIB);
    OK(cuMemFreeAsync(first_pointer, stream));
    OK(cuGraphLaunch(second, stream));
    IS(charged(), 2 * GIB);
    /* A captured release frees nothing yet. */
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemFreeAsync(second_pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    IS(cuGraphLaunch(first, stream), FULL);
    OK(cuGraphLaunch(freeing, stream));
    OK(cuGraphLaunch(first, stream));
    IS(charged(), 2 * GIB);
    /* It ends with the primary context. */
    OK(cuDevicePrimaryCtxReset_v2(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuGraphInstantiateWithFlags(&freeing, graph_that_takes(3 * GIB), 0));
    OK(cuGraphLaunch(freeing, NULL));
    OK(cuGraphInstantiateWithFlags(&freeing, graph_that_takes(3 * GIB), 0));
    OK(cuGraphLaunch(freeing, NULL));
}

static void a_mig_instance_is_the_same_to_nvml_and_cuda(void)
{
    CUdeviceptr pointer;
    nvmlDevice_t card, instance;
    nvmlMemory_t memory;
    nvmlProcessInfo_t list[2];
    unsigned count = 2;
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    IS(charged(), 100 * MIB);
    IS(nvmlInit_v2(), NVML_SUCCESS);
    IS(nvmlDeviceGetHandleByIndex_v2(0, &card), NVML_SUCCESS);
    IS(nvmlDeviceGetMigDeviceHandleByIndex(card, 0, &instance), NVML_SUCCESS);
    IS(nvmlDeviceGetMemoryInfo(instance, &memory), NVML_SUCCESS);
    IS(memory.total, LIMIT);
    IS(memory.used, CONTEXT + 100 * MIB);
    IS(nvmlDeviceGetComputeRunningProcesses_v3(instance, &count, list), NVML_SUCCESS);
    IS(count, 1);
    IS(list[0].usedGpuMemory, CONTEXT + 100 * MIB);
}

static void memory_of_another_namespace_is_charged_once(void)
{
    CUdeviceptr pointer;
    CUcontext other;
    OK(cuMemAlloc_v2(&pointer, 500 * MIB));
    void *driver = dlmopen(LM_ID_NEWLM, FAKEGPU "/libcuda.so.1", RTLD_NOW);
    RIGHT(driver != NULL);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))dlsym(driver, "cuDevicePrimaryCtxRetain");
    RIGHT(init && retain);
    OK(init(0));
    OK(retain(&other, 0));
    IS(charged(), CONTEXT + 500 * MIB);
    IS(cuMemAlloc_v2(&pointer, 4 * GIB), FULL);
    IS(charged(), CONTEXT + 500 * MIB);
}

static void a_pool_that_once_could_not_be_asked_is_charged_once(void)
{
    CUdeviceptr pointer;
    OK(cuMemAllocAsync(&pointer, 100 * MIB, NULL));
    OK(cuMemAllocAsync(&pointer, 100 * MIB, NULL));
    IS(charged(), 224 * MIB);
}

static void a_pool_that_is_never_told_of_is_what_its_pointers_are(void)
{
    CUdeviceptr first, second;
    size_t estimate = charged();
    OK(cuMemAllocAsync(&first, 100 * MIB, NULL));
    OK(cuMemAllocAsync(&second, 100 * MIB, NULL));
    IS(charged(), estimate + 200 * MIB);
    OK(cuMemFreeAsync(first, NULL));
    IS(charged(), estimate + 100 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    IS(charged(), estimate);
}

static void a_million_end_where_they_began(void)
{
    enum { ROUNDS = 1000000, HELD = 256 };
    static CUdeviceptr held[HELD];
    static bool pooled[HELD];
    unsigned seed = 42;
    CUstream stream;
    OK(cuStreamCreate(&stream, 0));
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned n = (unsigned)rand_r(&seed) % HELD;
        size_t bytes = 1 + (size_t)rand_r(&seed) % (24 * MIB);
        CUresult result;
        if (held[n]) {
            OK(pooled[n] || rand_r(&seed) % 2 ? cuMemFreeAsync(held[n], stream) : cuMemFree_v2(held[n]));
            held[n] = 0;
            continue;
        }
        pooled[n] = rand_r(&seed) % 8 == 0;
        result = pooled[n] ? cuMemAllocAsync(&held[n], bytes, stream) : cuMemAlloc_v2(&held[n], bytes);
        RIGHT(result == CUDA_SUCCESS || result == FULL);
        if (result == FULL)
            held[n] = 0;
    }
    for (unsigned n = 0; n < HELD; n++)
        if (held[n])
            OK(cuMemFreeAsync(held[n], stream));
    OK(cuStreamSynchronize(stream));
    IS(charged(), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
#define SCENARIO(name) {#name, name},
#include "scenarios.def"
    SCENARIO(hold_some)
    SCENARIO(pools_that_grow_are_no_overhead)
    SCENARIO(a_mig_instance_is_the_same_to_nvml_and_cuda)
    SCENARIO(memory_of_another_namespace_is_charged_once)
    SCENARIO(a_pool_that_once_could_not_be_asked_is_charged_once)
    SCENARIO(a_pool_that_is_never_told_of_is_what_its_pointers_are)
    SCENARIO(an_estimate_gives_way_to_what_nvml_says)
    SCENARIO(estimates_go_with_their_contexts)
    SCENARIO(an_estimate_that_is_gone_counts_no_more)
};

int main(int argc, char **argv)
{
    for (unsigned i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (argc > 1 && strcmp(argv[1], scenarios[i].name) == 0) {
            start();
            scenarios[i].run();
            return 0;
        }
    }
    printf("no scenario %s\n", argc > 1 ? argv[1] : "");
    return 2;
}
