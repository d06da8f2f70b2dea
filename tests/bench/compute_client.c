/* Launches a kernel that takes no time, so many times for each line of input, and prints the CPU time of one launch in ns. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "programs.h"

static uint64_t cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    char line[64];
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context) ||
        cuModuleLoadData(&module, ".version 8.0\n.target sm_75\n.visible .entry nothing() { ret; }\n") ||
        cuModuleGetFunction(&kernel, module, "nothing") || cuStreamCreate(&stream, 1))
        return 1;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        unsigned long count = strtoul(line, NULL, 10);
        uint64_t begin = cpu_ns();
        for (unsigned long i = 0; i < count; i++)
            if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL))
                return 1;
        printf("%f\n", (double)(cpu_ns() - begin) / (double)count);
        fflush(stdout);
    }
    return 0;
}
