/* What processes do with each other while CUDA is used. Argument: the scenario. Exit status 0 if all was right, else the line. The
 * container's limit is 4 GiB, a context costs 100 MiB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define RIGHT(condition)                                                                                                           \
    do {                                                                                                                           \
        if (!(condition)) {                                                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                                \
            _exit(__LINE__ & 0xff ? __LINE__ & 0xff : 1);                                                                          \
        }                                                                                                                          \
    } while (0)

enum { NOT_INITIALIZED = 3, OUT_OF_MEMORY = 2, NOT_PERMITTED = 800 };

extern char **environ;
static char *self, *argument;

static void *function(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

static int start(void)
{
    void *context;
    int device, result = ((int (*)(unsigned))function("cuInit"))(0);
    if (result)
        return result;
    ((int (*)(int *, int))function("cuDeviceGet"))(&device, 0);
    result = ((int (*)(void **, int))function("cuDevicePrimaryCtxRetain"))(&context, device);
    return result ? result : ((int (*)(void *))function("cuCtxSetCurrent"))(context);
}

static int take(uint64_t bytes)
{
    uint64_t pointer;
    return ((int (*)(uint64_t *, size_t))function("cuMemAlloc_v2"))(&pointer, bytes);
}

/* What the container has left. */
static uint64_t left(void)
{
    size_t free_bytes = 0, total = 0;
    RIGHT(((int (*)(size_t *, size_t *))function("cuMemGetInfo_v2"))(&free_bytes, &total) == 0);
    RIGHT(total == 4096 * MIB);
    return free_bytes;
}

static int ended(pid_t child)
{
    int status;
    RIGHT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void close_all(void)
{
    for (int file = 3; file < 1024; file++)
        close(file);
}

/* Another process that sees what is left, in MiB. */
static int left_by(const char *mib)
{
    pid_t child;
    char *arguments[] = {self, "left", (char *)mib, NULL};
    RIGHT(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    return ended(child);
}

static void scenario_fork_before(void)
{
    pid_t child = fork();
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    if (child == 0)
        _exit(0);
    RIGHT(ended(child) == 0);
    RIGHT(left() == (4096 - 100 - 1024) * MIB);
}

static void scenario_fork_after(void)
{
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    pid_t child = fork();
    if (child == 0) {
        RIGHT(take(MIB) == NOT_INITIALIZED);
        exit(0);
    }
    RIGHT(ended(child) == 0);
    RIGHT(left() == (4096 - 100 - 1024) * MIB);
    RIGHT(left_by("2872") == 0); /* less its own context */
}

static void scenario_vfork(void)
{
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    pid_t child = vfork();
    if (child == 0) {
        execl(self, self, "left", "2872", (char *)NULL);
        _exit(127);
    }
    RIGHT(ended(child) == 0);
    RIGHT(left() == (4096 - 100 - 1024) * MIB);
}

static int close_and_end(void *unused)
{
    (void)unused;
    close_all();
    return 0;
}

static void scenario_clone_files(void)
{
    static char stack[65536];
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    RIGHT(left_by("2872") == 0);
    pid_t child = clone(close_and_end, stack + sizeof(stack), CLONE_FILES | SIGCHLD, NULL);
    RIGHT(child > 0 && ended(child) == 0);
    /* The driver has lost its card with its descriptors; what this process holds still counts. */
    RIGHT(left_by("2872") == 0);
}

static void scenario_raw_clone(void)
{
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        exit(0);
    RIGHT(ended(child) == 0);
    RIGHT(left_by("2872") == 0);
}

static void scenario_exec(void)
{
    RIGHT(start() == 0 && take(3072 * MIB) == 0);
    execl(self, self, "left", "3996", (char *)NULL);
    RIGHT(0);
}

static void scenario_daemon(void)
{
    int pipes[2];
    char answer = 'x';
    RIGHT(pipe(pipes) == 0 && dup2(pipes[1], 1) == 1);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        close_all();
        answer = start() == 0 && take(1024 * MIB) == 0 && left() == (4096 - 100 - 1024) * MIB && take(3072 * MIB) == OUT_OF_MEMORY ? 'y' : 'n';
        _exit(write(1, &answer, 1) != 1);
    }
    RIGHT(ended(child) == 0);
    RIGHT(read(pipes[0], &answer, 1) == 1 && answer == 'y');
}

static volatile int stop;

static void *take_and_give(void *context)
{
    ((int (*)(void *))function("cuCtxSetCurrent"))(context);
    while (!stop) {
        uint64_t pointer;
        if (((int (*)(uint64_t *, size_t))function("cuMemAlloc_v2"))(&pointer, 2 * MIB) == 0)
            ((int (*)(uint64_t))function("cuMemFree_v2"))(pointer);
        take(8192 * MIB); /* refused, the slow path */
        pthread_testcancel();
    }
    return NULL;
}

/* Cancelled wherever they are; none may take a lock with it. */
static void scenario_threads(void)
{
    void *context;
    RIGHT(start() == 0);
    RIGHT(((int (*)(void **))function("cuCtxGetCurrent"))(&context) == 0);
    for (int round = 0; round < 50; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            RIGHT(pthread_create(&threads[i], NULL, take_and_give, context) == 0);
        usleep(2000);
        for (int i = 0; i < 4; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        RIGHT(take(2 * MIB) == 0);
    }
}

static sigjmp_buf back;

static void leave_thread(int signal)
{
    (void)signal;
    pthread_exit(NULL);
}

static void leave_call(int signal)
{
    siglongjmp(back, signal);
}

static struct {
    void *context;
    int (*set_current)(void *);
    int (*allocate)(uint64_t *, size_t);
    int refused; /* at least once, by this thread */
} being_refused;

/* Looks no name up, since who leaves the loader that way leaves its lock. */
static void *be_refused(void *unused)
{
    uint64_t pointer;
    (void)unused;
    being_refused.set_current(being_refused.context);
    for (;; __atomic_store_n(&being_refused.refused, 1, __ATOMIC_RELEASE))
        being_refused.allocate(&pointer, 8192 * MIB);
}

static void wait_for_refusal(void)
{
    while (!__atomic_exchange_n(&being_refused.refused, 0, __ATOMIC_ACQUIRE))
        usleep(1000);
}

/* Signals whose handlers do not return, while a refusal is being found, which takes long here. None may take a lock with it. */
static void scenario_left(void)
{
    enum { ROUNDS = 30 };
    static volatile int round;
    RIGHT(start() == 0 && take(1024 * MIB) == 0);
    RIGHT(((int (*)(void **))function("cuCtxGetCurrent"))(&being_refused.context) == 0);
    being_refused.set_current = (int (*)(void *))function("cuCtxSetCurrent");
    being_refused.allocate = (int (*)(uint64_t *, size_t))function("cuMemAlloc_v2");
    signal(SIGUSR1, leave_thread);
    signal(SIGALRM, leave_call);
    for (round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        RIGHT(pthread_create(&thread, NULL, be_refused, NULL) == 0);
        wait_for_refusal();
        usleep((useconds_t)(500 * round));
        RIGHT(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, NULL) == 0);
    }
    for (round = 0; round < ROUNDS; round++) {
        ualarm((useconds_t)(20000 + 500 * round), 0);
        if (sigsetjmp(back, 1) == 0)
            be_refused(NULL);
    }
    RIGHT(left() == (4096 - 100 - 1024) * MIB && take(1024 * MIB) == 0);
}

/* The container's request is away, and comes. */
static void scenario_retry(void)
{
    char away[4096];
    snprintf(away, sizeof(away), "%s.away", argument);
    RIGHT(rename(argument, away) == 0);
    RIGHT(start() == NOT_PERMITTED && take(MIB) != 0);
    RIGHT(rename(away, argument) == 0);
    RIGHT(start() == 0 && left() == 3996 * MIB && take(1024 * MIB) == 0);
}

/* The driver's own start fails once (a fault of the fake card). */
static void scenario_driver_retry(void)
{
    enum { UNKNOWN = 999 };
    RIGHT(start() == UNKNOWN && take(MIB) == NOT_INITIALIZED);
    RIGHT(start() == 0 && left() == 3996 * MIB && take(1024 * MIB) == 0);
}

static void scenario_chroot(void)
{
    RIGHT(function("cuInit") && chroot(argument) == 0 && chdir("/") == 0);
    RIGHT(start() == NOT_PERMITTED);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"fork-before", scenario_fork_before}, {"fork-after", scenario_fork_after}, {"vfork", scenario_vfork},
                     {"clone-files", scenario_clone_files}, {"raw-clone", scenario_raw_clone},   {"exec", scenario_exec},
                     {"daemon", scenario_daemon},           {"threads", scenario_threads},       {"left", scenario_left},
                     {"retry", scenario_retry},
                     {"driver-retry", scenario_driver_retry}, {"chroot", scenario_chroot}};
    self = argv[0];
    argument = argc > 2 ? argv[2] : NULL;
    if (argc > 2 && strcmp(argv[1], "left") == 0) {
        RIGHT(start() == 0);
        uint64_t found = left() / MIB;
        if (found != strtoull(argv[2], NULL, 10))
            fprintf(stderr, "%llu MiB left\n", (unsigned long long)found);
        return found != strtoull(argv[2], NULL, 10);
    }
    for (unsigned i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(scenarios[i].name, argv[1]) == 0) {
            scenarios[i].run();
            return 0;
        }
    }
    return 255;
}
