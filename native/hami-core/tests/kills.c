/* Programs that allocate without end and are killed at random, or stopped for a while, and one that goes on beside them: what it
 * sees used is never above the limit, and equals what the living hold whenever all others are dead. Prints how many milliseconds the
 * slowest of its calls took, without what its thread stood in the scheduler's queue. Exit status 0 if the books were right all the
 * time.
 * usage: kills PROGRAMS KILLS */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"

extern CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
extern CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
extern CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
extern nvmlReturn_t nvmlInit_v2(void);
extern nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
extern nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);

#define MIB ((size_t)1 << 20)

enum { MOST_PROGRAMS = 16, CHECK_EVERY = 100, STOP_EVERY = 8, STOP_MICROSECONDS = 10000 };

static struct shared {
    atomic_uint asked, answered; /* checks while all others are dead */
    atomic_ullong calls;
    atomic_ullong slowest; /* nanoseconds */
    atomic_bool wrong;
} *shared;

static pid_t parent;
static int own_errors; /* without what the library says of refusals */

static void fail(const char *what)
{
    dprintf(own_errors, "%s\n", what);
    atomic_store(&shared->wrong, true);
    _exit(1);
}

static void ok(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        dprintf(own_errors, "%s: error %d\n", what, (int)result);
        fail("a call failed");
    }
}

/* False: there is no room for its context, which is as good as any other refusal. */
static bool start(void)
{
    CUdevice device;
    CUcontext context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* died before it was asked for */
        _exit(1);
    ok(cuInit(0), "cuInit");
    ok(cuDeviceGet(&device, 0), "cuDeviceGet");
    CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    ok(result, "cuDevicePrimaryCtxRetain");
    ok(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    return true;
}

static void hammer(unsigned seed)
{
    CUdeviceptr pointer;
    while (!start())
        ;
    for (;;) {
        size_t bytes = (size_t)(1 + rand_r(&seed) % 1500) * MIB;
        bool pooled = rand_r(&seed) % 4 == 0;
        CUresult result = pooled ? cuMemAllocAsync(&pointer, bytes, NULL) : cuMemAlloc_v2(&pointer, bytes);
        if (result == CUDA_SUCCESS)
            ok(pooled ? cuMemFreeAsync(pointer, NULL) : cuMemFree_v2(pointer), "freeing");
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            ok(result, "allocating");
    }
}

static unsigned long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (unsigned long long)time.tv_sec * 1000000000 + (unsigned long long)time.tv_nsec;
}

/* Nanoseconds that this thread has stood in the queue for a processor. */
static unsigned long long queued(int schedstat)
{
    char text[128];
    unsigned long long delay = 0;
    ssize_t length = pread(schedstat, text, sizeof(text) - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    if (sscanf(text, "%*u %llu", &delay) != 1)
        fail("/proc/thread-self/schedstat cannot be read");
    return delay;
}

static nvmlDevice_t card;

static CUresult look(CUdeviceptr *pointer)
{
    nvmlMemory_t memory;
    (void)pointer;
    if (nvmlDeviceGetMemoryInfo(card, &memory) != NVML_SUCCESS || memory.used > memory.total)
        fail("more is used than there is");
    return CUDA_SUCCESS;
}

/* One call, timed. */
static CUresult timed(int schedstat, CUresult (*act)(CUdeviceptr *pointer), CUdeviceptr *pointer)
{
    unsigned long long stood = queued(schedstat), begin = now();
    CUresult result = act(pointer);
    unsigned long long end = now(), delay = queued(schedstat) - stood;
    unsigned long long took = end - begin > delay ? end - begin - delay : 0;
    if (took > atomic_load(&shared->slowest))
        atomic_store(&shared->slowest, took);
    atomic_fetch_add(&shared->calls, 1);
    return result;
}

static CUresult take(CUdeviceptr *pointer)
{
    return cuMemAlloc_v2(pointer, 64 * MIB);
}

static CUresult give(CUdeviceptr *pointer)
{
    return cuMemFree_v2(*pointer);
}

/* What is used once the others are dead, which a refusal finds out. */
static size_t used_alone(void)
{
    CUdeviceptr pointer;
    size_t left, total;
    if (cuMemAlloc_v2(&pointer, (size_t)1 << 45) != CUDA_ERROR_OUT_OF_MEMORY)
        fail("32 TiB were granted");
    ok(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
    return total - left;
}

static void go_on(void)
{
    CUdeviceptr held, pointer;
    if (!start())
        fail("no room for the first context");
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &card) != NVML_SUCCESS)
        fail("NVML does not start");
    ok(cuMemAlloc_v2(&held, 200 * MIB), "cuMemAlloc");
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    const size_t mine = used_alone();
    atomic_fetch_add(&shared->answered, 1);
    for (;;) {
        if (atomic_load(&shared->asked) == atomic_load(&shared->answered)) {
            if (used_alone() != mine)
                fail("what the dead held is still used");
            atomic_fetch_add(&shared->answered, 1);
        }
        CUresult result = timed(schedstat, take, &pointer);
        if (result == CUDA_SUCCESS)
            result = timed(schedstat, give, &pointer);
        else if (result == CUDA_ERROR_OUT_OF_MEMORY)
            result = CUDA_SUCCESS;
        ok(result, "allocating and freeing");
        timed(schedstat, look, &pointer);
    }
}

static void reap(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        atomic_store(&shared->wrong, true); /* it said why */
}

/* Until the one that goes on has answered, or has ended. */
static bool answers(pid_t other, unsigned wanted)
{
    int status;
    while (atomic_load(&shared->answered) < wanted && !atomic_load(&shared->wrong)) {
        if (waitpid(other, &status, WNOHANG) == other)
            return false;
        usleep(1000);
    }
    return !atomic_load(&shared->wrong);
}

static pid_t begin(unsigned seed)
{
    pid_t child = fork();
    if (child == 0)
        hammer(seed);
    return child;
}

int main(int argc, char **argv)
{
    pid_t programs[MOST_PROGRAMS];
    unsigned seed = 1;
    if (argc != 3)
        return 2;
    unsigned count = (unsigned)atoi(argv[1]), kills = (unsigned)atoi(argv[2]), checks = 1;
    if (count == 0 || count > MOST_PROGRAMS)
        return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    parent = getpid();
    own_errors = dup(2);
    dup2(open("/dev/null", O_WRONLY), 2);
    pid_t other = fork();
    if (other == 0)
        go_on();
    bool right = answers(other, checks);
    for (unsigned i = 0; i < count; i++)
        programs[i] = begin(i);
    for (unsigned i = 1; right && i <= kills; i++) {
        unsigned chosen = (unsigned)rand_r(&seed) % count;
        usleep(200 + (unsigned)rand_r(&seed) % 2000);
        if (i % STOP_EVERY == 0) {
            kill(programs[chosen], SIGSTOP);
            usleep(STOP_MICROSECONDS);
        }
        reap(programs[chosen]);
        if (i % CHECK_EVERY == 0) {
            for (unsigned j = 0; j < count; j++)
                if (j != chosen)
                    reap(programs[j]);
            atomic_store(&shared->asked, checks);
            right = answers(other, ++checks);
            for (unsigned j = 0; j < count; j++)
                programs[j] = begin(i * count + j);
        } else {
            programs[chosen] = begin(i * count + chosen);
        }
    }
    for (unsigned i = 0; i < count; i++)
        reap(programs[i]);
    reap(other);
    if (!right || atomic_load(&shared->wrong))
        return 1;
    printf("slowest call: %.3f ms of %llu\n", (double)atomic_load(&shared->slowest) / 1e6,
           (unsigned long long)atomic_load(&shared->calls));
    return 0;
}
