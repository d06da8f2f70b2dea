/* A program that uses CUDA and NVML and obeys commands: one a line on standard input, one line of answer each.
 *
 * The argument says how it finds the driver's functions: `linked` (against libcuda.so.1, another build of this file), `handle`
 * (dlopen, dlsym), `default` (dlopen global, dlsym(RTLD_DEFAULT)), `getproc` (cuGetProcAddress, as CUDA's runtime does). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/driver_abi.h"

#define FUNCTIONS(F)                                                                                                               \
    F(cuInit, (unsigned int))                                                                                                      \
    F(cuDeviceGetCount, (int *))                                                                                                   \
    F(cuDeviceGet, (CUdevice *, int))                                                                                              \
    F(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                                   \
    F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                           \
    F(cuCtxSetCurrent, (CUcontext))                                                                                                \
    F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                                      \
    F(cuMemFree_v2, (CUdeviceptr))                                                                                                 \
    F(cuMemGetInfo_v2, (size_t *, size_t *))                                                                                       \
    F(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                                          \
    F(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                                     \
    F(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                      \
    F(cuMemRelease, (CUmemGenericAllocationHandle))                                                                                \
    F(cuCtxGetDevice, (CUdevice *))                                                                                                \
    F(cuStreamSynchronize, (CUstream))

#define POINTER(name, parameters) static CUresult(*p_##name) parameters;
FUNCTIONS(POINTER)

static void *nvml_library;

#ifdef LINKED
#define DECLARE(name, parameters) extern CUresult name parameters;
FUNCTIONS(DECLARE)
static void find_functions(const char *way)
{
    (void)way;
#define LINK(name, parameters) p_##name = name;
    FUNCTIONS(LINK)
}
#else
static void *by_cuda(const char *name)
{
    static CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult status;
    void *address = NULL;
    char base[64];
    if (!get)
        get = (CUresult(*)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *))dlsym(
            dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    snprintf(base, sizeof(base), "%s", name);
    char *suffix = strstr(base, "_v2");
    if (suffix)
        *suffix = '\0';
    get(base, &address, 12020, 0, &status);
    return address;
}

static void *find(const char *way, const char *name)
{
    if (strcmp(way, "handle") == 0)
        return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (strcmp(way, "default") == 0)
        return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) ? dlsym(RTLD_DEFAULT, name) : NULL;
    if (strcmp(way, "getproc") == 0)
        return by_cuda(name);
    return NULL;
}

static void find_functions(const char *way)
{
#define FIND(name, parameters)                                                                                                     \
    p_##name = (CUresult(*) parameters)find(way, #name);                                                                           \
    if (!p_##name)                                                                                                                 \
        exit(3);
    FUNCTIONS(FIND)
}
#endif

static uint64_t size_of(const char *text)
{
    char *end;
    uint64_t number = strtoull(text, &end, 0);
    return *end == 'g' ? number << 30 : *end == 'm' ? number << 20 : *end == 'k' ? number << 10 : number;
}

enum { POINTERS = 1 << 17 };
static CUdeviceptr pointers[POINTERS];
static unsigned pointer_count;

static nvmlDevice_t nvml_device(unsigned index)
{
    nvmlDevice_t device = NULL;
    if (!nvml_library) {
        nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        ((nvmlReturn_t(*)(void))dlsym(nvml_library, "nvmlInit_v2"))();
    }
    ((nvmlReturn_t(*)(unsigned, nvmlDevice_t *))dlsym(nvml_library, "nvmlDeviceGetHandleByIndex_v2"))(index, &device);
    return device;
}

static void nvml_memory(unsigned index)
{
    nvmlDevice_t device = nvml_device(index);
    nvmlMemory_t one = {0, 0, 0};
    nvmlMemory_v2_t two = {.version = (unsigned)sizeof(two) | 2u << 24};
    nvmlReturn_t first = ((nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))dlsym(nvml_library, "nvmlDeviceGetMemoryInfo"))(device, &one);
    nvmlReturn_t second =
        ((nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_v2_t *))dlsym(nvml_library, "nvmlDeviceGetMemoryInfo_v2"))(device, &two);
    printf("%d %llu %llu %llu | %d %llu %llu %llu %llu\n", first, one.total, one.free, one.used, second, two.total, two.reserved,
           two.free, two.used);
}

/* NVML that nobody has begun. */
static void nvml_before_init(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlMemory_t memory;
    nvmlProcessInfo_v2_t list[1];
    unsigned count = 1;
    printf("%d", ((nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))dlsym(library, "nvmlDeviceGetMemoryInfo"))(NULL, &memory));
    printf(" %d\n", ((nvmlReturn_t(*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *))dlsym(
                        library, "nvmlDeviceGetComputeRunningProcesses_v2"))(NULL, &count, list));
}

static CUresult context(int ordinal)
{
    CUdevice device;
    CUcontext made;
    CUresult result = p_cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = p_cuDevicePrimaryCtxRetain(&made, device);
    return result == CUDA_SUCCESS ? p_cuCtxSetCurrent(made) : result;
}

static CUresult allocate(uint64_t bytes)
{
    CUdeviceptr pointer = 0;
    CUresult result = p_cuMemAlloc_v2(&pointer, bytes);
    if (result == CUDA_SUCCESS)
        pointers[pointer_count++] = pointer;
    return result;
}

static CUresult create(uint64_t bytes)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    CUdevice device;
    CUresult result = p_cuCtxGetDevice(&device);
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    if (result == CUDA_SUCCESS)
        result = p_cuMemCreate(&handle, bytes, &prop, 0);
    if (result == CUDA_SUCCESS)
        pointers[pointer_count++] = handle;
    return result;
}

static CUresult allocate_async(uint64_t bytes)
{
    CUdeviceptr pointer = 0;
    CUresult result = p_cuMemAllocAsync(&pointer, bytes, NULL);
    if (result == CUDA_SUCCESS)
        pointers[pointer_count++] = pointer;
    return result;
}

static void list_processes(unsigned index)
{
    nvmlDevice_t device = nvml_device(index);
    nvmlProcessInfo_v2_t list[64];
    unsigned count = 64;
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *))dlsym(
        nvml_library, "nvmlDeviceGetComputeRunningProcesses_v3"))(device, &count, list);
    printf("%d", result);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        printf(" %u:%llu", list[i].pid, list[i].usedGpuMemory);
    putchar('\n');
}

static void obey(char *line, const char *way, char **argv)
{
    char *argument = strchr(line, ' ');
    CUdevice device;
    size_t free_bytes = 0, total = 0;

    if (argument)
        *argument++ = '\0';
    else
        argument = "";
    if (strcmp(line, "init") == 0) {
        printf("%d\n", p_cuInit(0));
    } else if (strcmp(line, "context") == 0) {
        printf("%d\n", context(atoi(argument)));
    } else if (strcmp(line, "alloc") == 0) {
        printf("%d\n", allocate(size_of(argument)));
    } else if (strcmp(line, "alloc-null") == 0) {
        printf("%d\n", p_cuMemAlloc_v2(NULL, size_of(argument)));
    } else if (strcmp(line, "free") == 0) {
        printf("%d\n", p_cuMemFree_v2(pointers[atoi(argument)]));
    } else if (strcmp(line, "free-pointer") == 0) {
        printf("%d\n", p_cuMemFree_v2(strtoull(argument, NULL, 0)));
    } else if (strcmp(line, "alloc-async") == 0) {
        printf("%d\n", allocate_async(size_of(argument)));
    } else if (strcmp(line, "free-async") == 0) {
        printf("%d\n", p_cuMemFreeAsync(pointers[atoi(argument)], NULL));
    } else if (strcmp(line, "synchronize") == 0) {
        printf("%d\n", p_cuStreamSynchronize(NULL));
    } else if (strcmp(line, "create") == 0) {
        printf("%d\n", create(size_of(argument)));
    } else if (strcmp(line, "release") == 0) {
        printf("%d\n", p_cuMemRelease(pointers[atoi(argument)]));
    } else if (strcmp(line, "processes") == 0) {
        list_processes((unsigned)atoi(argument));
    } else if (strcmp(line, "info") == 0) {
        CUresult result = p_cuMemGetInfo_v2(&free_bytes, &total);
        printf("%d %zu %zu\n", result, free_bytes, total);
    } else if (strcmp(line, "total") == 0) {
        p_cuDeviceGet(&device, atoi(argument));
        CUresult result = p_cuDeviceTotalMem_v2(&total, device);
        printf("%d %zu\n", result, total);
    } else if (strcmp(line, "nvml") == 0) {
        nvml_memory((unsigned)atoi(argument));
    } else if (strcmp(line, "nvml-before-init") == 0) {
        nvml_before_init();
    } else if (strcmp(line, "fork") == 0) {
        /* The child obeys from now on; the parent waits for it. */
        fflush(stdout);
        pid_t child = fork();
        int status;
        if (child > 0) {
            waitpid(child, &status, 0);
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        printf("%d\n", child);
    } else if (strcmp(line, "fork-die") == 0) {
        /* A child that ends at once, and one that libc does not know of and that ends in order. */
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
        child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
        if (child == 0)
            exit(0);
        waitpid(child, NULL, 0);
        puts("0");
    } else if (strcmp(line, "exec") == 0) {
        puts("0");
        fflush(stdout);
        execv("/proc/self/exe", argv);
    } else if (strcmp(line, "close-all") == 0) {
        for (int file = 3; file < 1024; file++)
            close(file);
        puts("0");
    } else if (strcmp(line, "hammer") == 0) {
        for (CUdeviceptr pointer;;)
            if (p_cuMemAlloc_v2(&pointer, size_of(argument)) == CUDA_SUCCESS)
                p_cuMemFree_v2(pointer);
    } else if (strcmp(line, "umask") == 0) {
        mode_t mask = umask(0);
        umask(mask);
        printf("%o\n", mask);
    } else if (strcmp(line, "setenv") == 0) {
        char *value = strchr(argument, '=');
        *value++ = '\0';
        printf("%d\n", setenv(argument, value, 1));
    } else if (strcmp(line, "chdir") == 0) {
        printf("%d\n", chdir(argument));
    } else {
        printf("unknown command %s %s\n", line, way);
    }
    fflush(stdout);
}

/* Byte by byte: a child of fork must not inherit what was read ahead. */
static int read_line(char *line, size_t bytes)
{
    size_t length = 0;
    while (length + 1 < bytes && read(0, line + length, 1) == 1) {
        if (line[length] == '\n') {
            line[length] = '\0';
            return 1;
        }
        length++;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char line[1024];
    const char *way = argc > 1 ? argv[1] : "handle";
    find_functions(way);
    while (read_line(line, sizeof(line)))
        obey(line, way, argv);
    return 0;
}
