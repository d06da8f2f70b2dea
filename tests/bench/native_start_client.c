/* Starts a program so many times and prints the nanoseconds from its start to its end that a twentieth of the starts stay below: what
 * else the machine does touches these least. Arguments: how many times, the program. */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int spawn(int count, char *program)
{
    uint64_t *taken = calloc((size_t)count, sizeof(*taken));
    char *arguments[] = {program, NULL};
    /* The preload is for the programs that are started, not for this one. */
    const char *preload = getenv("BENCH_PRELOAD");
    if (!taken || (preload && setenv("LD_PRELOAD", preload, 1) != 0))
        return 1;
    for (int i = 0; i < count; i++) {
        pid_t child;
        uint64_t start = now();
        if (posix_spawn(&child, program, NULL, NULL, arguments, environ) != 0 || waitpid(child, NULL, 0) != child)
            return 1;
        taken[i] = now() - start;
    }
    qsort(taken, (size_t)count, sizeof(*taken), compare);
    printf("%llu\n", (unsigned long long)taken[count / 20]);
    return 0;
}

int main(int argc, char **argv)
{
    return argc == 3 ? spawn(atoi(argv[1]), argv[2]) : 2;
}
