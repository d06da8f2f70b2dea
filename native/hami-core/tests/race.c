/* Processes and threads that all ask for memory at the same moment, round after round, where exactly so many fit: never more may
 * get it, and never fewer. Exit status 0 if it was so in every round.
 * usage: race PROCESSES THREADS ROUNDS BYTES FIT */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_calls.h"


static struct shared {
    pthread_barrier_t barrier;
    atomic_uint granted;
    atomic_uint wrong;
} *shared;

static unsigned processes, threads, rounds, fit;
static size_t bytes;
static CUcontext context;

static void meet(void)
{
    pthread_barrier_wait(&shared->barrier);
}

static void *play(void *first)
{
    cuCtxSetCurrent(context);
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr pointer = 0;
        meet();
        CUresult result = cuMemAlloc_v2(&pointer, bytes);
        if (result == CUDA_SUCCESS)
            atomic_fetch_add(&shared->granted, 1);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY)
            atomic_fetch_add(&shared->wrong, 1);
        meet();
        if (first) {
            unsigned granted = atomic_exchange(&shared->granted, 0);
            if (granted != fit && atomic_fetch_add(&shared->wrong, 1) == 0)
                printf("round %u: %u were granted where %u fit\n", round, granted, fit);
        }
        if (result == CUDA_SUCCESS && cuMemFree_v2(pointer) != CUDA_SUCCESS)
            atomic_fetch_add(&shared->wrong, 1);
    }
    return NULL;
}

static void run_process(unsigned number)
{
    pthread_t thread[64];
    CUdevice device;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
        cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
        printf("process %u cannot start CUDA\n", number);
        atomic_fetch_add(&shared->wrong, 1);
        fflush(stdout);
        kill(0, 9);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, play, number == 0 && i == 0 ? &thread : NULL);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    pthread_barrierattr_t across;
    if (argc != 6)
        return 2;
    processes = (unsigned)atoi(argv[1]);
    threads = (unsigned)atoi(argv[2]);
    rounds = (unsigned)atoi(argv[3]);
    bytes = strtoull(argv[4], NULL, 0);
    fit = (unsigned)atoi(argv[5]);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across, processes * threads);
    for (unsigned i = 0; i < processes; i++)
        if (fork() == 0)
            run_process(i);
    int status;
    while (wait(&status) > 0)
        if (status != 0)
            atomic_fetch_add(&shared->wrong, 1);
    return atomic_load(&shared->wrong) != 0;
}
