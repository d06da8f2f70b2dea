/* A CUDA program that measures its own calls. It obeys commands, one a line, and answers with one line of numbers each; bench/native.py
 * runs it with and without the library, in turns.
 *
 *   init AT                  nanoseconds of cuInit, called at this time of CLOCK_MONOTONIC (ns); all other commands make a context first
 *   keep LIVE                makes the number of live blocks LIVE
 *   pairs COUNT              CPU nanoseconds a pair: free a live block at random and take another (one block, if none is live)
 *   info COUNT               CPU nanoseconds a cuMemGetInfo
 *   chase PLACES COUNT       CPU nanoseconds a step of a pointer chase through so many cache lines
 *   hammer THREADS COUNT     start and end (CLOCK_MONOTONIC, ns) of so many threads that take and free COUNT times each
 *   futex THREADS COUNT      the same with the plainest exact books: what the library does, but for the total, which lies behind one
 *                            futex lock in the file that argument 1 names
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "records.h"

typedef unsigned long long pointer;
static int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *), (*get_current)(void **);
static int (*take)(pointer *, size_t), (*give)(pointer), (*get_info)(size_t *, size_t *);

enum { BYTES = 512 };
static void *context;
static pointer *live;
static size_t live_count;

static void must(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}

static uint64_t now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void start(void)
{
    int device;
    must(init(0), "cuInit");
    must(device_get(&device, 0), "cuDeviceGet");
    must(retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
}

static void keep(size_t count)
{
    while (live_count > count)
        must(give(live[--live_count]), "cuMemFree");
    live = realloc(live, (count + 1) * sizeof(*live));
    while (live_count < count)
        must(take(&live[live_count++], BYTES), "cuMemAlloc");
}

static uint64_t random_state = 88172645463325252u;

static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static double pairs(size_t count)
{
    pointer one;
    uint64_t begin = now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < count; i++) {
        if (live_count <= 1) {
            must(take(&one, BYTES), "cuMemAlloc");
            must(give(one), "cuMemFree");
        } else {
            size_t which = random_number() % live_count;
            must(give(live[which]), "cuMemFree");
            must(take(&live[which], BYTES), "cuMemAlloc");
        }
    }
    return (double)(now(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)count;
}

static double info(size_t count)
{
    size_t available, total;
    uint64_t begin = now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < count; i++)
        must(get_info(&available, &total), "cuMemGetInfo");
    return (double)(now(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)count;
}

struct line {
    struct line *next;
    char rest[56];
};

/* One cycle through all lines in random order, begun where the last call ended, so that as little is in the caches as for a table that
 * is used now and then. */
static double chase(size_t places, size_t count)
{
    static struct line *at;
    if (!at) {
        size_t *order = malloc(places * sizeof(*order)), bytes = places * sizeof(struct line);
        struct line *lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!order || lines == MAP_FAILED)
            exit(1);
        madvise(lines, bytes, MADV_NOHUGEPAGE); /* as tables that grow in pieces have them */
        for (size_t i = 0; i < places; i++)
            order[i] = i;
        for (size_t i = places - 1; i > 0; i--) {
            size_t other = random_number() % (i + 1), kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
        for (size_t i = 0; i < places; i++)
            lines[order[i]].next = &lines[order[(i + 1) % places]];
        free(order);
        at = lines;
    }
    uint64_t begin = now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < count; i++)
        at = *(struct line *volatile *)&at->next;
    return (double)(now(CLOCK_THREAD_CPUTIME_ID) - begin) / (double)count;
}

struct shared {
    _Alignas(64) atomic_int lock; /* 0 free, 1 taken, 2 taken and waited for */
    _Alignas(64) uint64_t total;
};

static struct records records;

static int add(struct shared *shared, uint64_t bytes, uint64_t limit)
{
    int seen = 0;
    if (!atomic_compare_exchange_strong(&shared->lock, &seen, 1))
        while (atomic_exchange(&shared->lock, 2) != 0)
            syscall(SYS_futex, &shared->lock, FUTEX_WAIT, 2, NULL, NULL, 0);
    int fits = shared->total + bytes <= limit;
    if (fits)
        shared->total += bytes;
    if (atomic_exchange(&shared->lock, 0) == 2)
        syscall(SYS_futex, &shared->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
    return fits;
}

static pointer take_counted(struct shared *shared)
{
    void *current;
    pointer one;
    must(get_current(&current), "cuCtxGetCurrent");
    must(!add(shared, BYTES, UINT64_MAX / 2), "limit");
    must(take(&one, BYTES), "cuMemAlloc");
    records_add(&records, (struct record){.key = one, .bytes = BYTES, .owner = (uintptr_t)current});
    return one;
}

static void give_counted(struct shared *shared, pointer one)
{
    struct record record;
    must(!records_take(&records, one, &record), "record");
    must(give(one), "cuMemFree");
    add(shared, -record.bytes, UINT64_MAX);
}

struct work {
    pthread_t thread;
    size_t count;
    struct shared *shared;
};

static void *hammer(void *argument)
{
    const struct work *work = argument;
    pointer one;
    must(set_current(context), "cuCtxSetCurrent");
    for (size_t i = 0; i < work->count; i++) {
        if (work->shared) {
            give_counted(work->shared, take_counted(work->shared));
        } else {
            must(take(&one, BYTES), "cuMemAlloc");
            must(give(one), "cuMemFree");
        }
    }
    return NULL;
}

static void hammer_all(size_t threads, size_t count, struct shared *shared)
{
    struct work *work = calloc(threads, sizeof(*work));
    uint64_t begin = now(CLOCK_MONOTONIC);
    for (size_t i = 0; i < threads; i++) {
        work[i].count = count;
        work[i].shared = shared;
        pthread_create(&work[i].thread, NULL, hammer, &work[i]);
    }
    for (size_t i = 0; i < threads; i++)
        pthread_join(work[i].thread, NULL);
    printf("%llu %llu\n", (unsigned long long)begin, (unsigned long long)now(CLOCK_MONOTONIC));
    free(work);
}

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

int main(int argc, char **argv)
{
    char line[256], command[32];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    struct shared *shared = NULL;

    if (argc != 2 || !library) {
        fprintf(stderr, "usage: native_client FILE, with libcuda.so.1 in reach\n");
        return 2;
    }
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(*shared)) != 0)
        return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
#define FIND(pointer, name) *(void **)&pointer = find(library, name)
    FIND(init, "cuInit");
    FIND(device_get, "cuDeviceGet");
    FIND(retain, "cuDevicePrimaryCtxRetain");
    FIND(set_current, "cuCtxSetCurrent");
    FIND(get_current, "cuCtxGetCurrent");
    FIND(take, "cuMemAlloc_v2");
    FIND(give, "cuMemFree_v2");
    FIND(get_info, "cuMemGetInfo_v2");
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof(line), stdin)) {
        size_t first = 0, second = 0;
        sscanf(line, "%31s %zu %zu", command, &first, &second);
        if (strcmp(command, "init") == 0) {
            struct timespec at = {(time_t)(first / 1000000000u), (long)(first % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
            uint64_t begin = now(CLOCK_MONOTONIC);
            must(init(0), "cuInit");
            printf("%llu\n", (unsigned long long)(now(CLOCK_MONOTONIC) - begin));
            continue;
        }
        if (!context)
            start();
        if (strcmp(command, "keep") == 0) {
            keep(first);
            puts("kept");
        } else if (strcmp(command, "pairs") == 0) {
            printf("%f\n", pairs(first));
        } else if (strcmp(command, "info") == 0) {
            printf("%f\n", info(first));
        } else if (strcmp(command, "chase") == 0) {
            printf("%f\n", chase(first, second));
        } else if (strcmp(command, "hammer") == 0) {
            hammer_all(first, second, NULL);
        } else if (strcmp(command, "futex") == 0) {
            hammer_all(first, second, shared);
        }
    }
    return 0;
}
