/* Starts a program with each of several libraries preloaded, in turns, and prints for each the nanoseconds from a start to its end that
 * a twentieth of the starts stay below: what else the machine does touches these least, and all of them alike. Arguments: how many
 * times, the program, the libraries; an empty one is none. */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

enum { LIBRARIES = 8, VARIABLE_BYTES = 4096 };

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

/* Nanoseconds, 0 where it cannot be started. */
static uint64_t start(char *program, char *variable)
{
    char *arguments[] = {program, NULL}, *environment[] = {variable, NULL};
    pid_t child;
    uint64_t started = now();
    if (posix_spawn(&child, program, NULL, NULL, arguments, environment) != 0 || waitpid(child, NULL, 0) != child)
        return 0;
    return now() - started;
}

int main(int argc, char **argv)
{
    static char variables[LIBRARIES][VARIABLE_BYTES];
    uint64_t *taken[LIBRARIES];
    int count = argc > 3 ? atoi(argv[1]) : 0, libraries = argc - 3;

    if (count < 1 || libraries > LIBRARIES)
        return 2;
    for (int i = 0; i < libraries; i++) {
        snprintf(variables[i], VARIABLE_BYTES, "LD_PRELOAD=%s", argv[3 + i]);
        if (!(taken[i] = calloc((size_t)count, sizeof(*taken[i]))))
            return 1;
    }
    for (int round = 0; round < count; round++)
        for (int i = 0; i < libraries; i++)
            if (!(taken[i][round] = start(argv[2], variables[i])))
                return 1;
    for (int i = 0; i < libraries; i++) {
        qsort(taken[i], (size_t)count, sizeof(*taken[i]), compare);
        printf("%llu\n", (unsigned long long)taken[i][count / 20]);
    }
    return 0;
}
