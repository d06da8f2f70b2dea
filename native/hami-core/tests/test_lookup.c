#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

/* Runs a program with the library preloaded; its exit status. */
static int run(const char *const *argv, const char *libraries)
{
    pid_t child = fork();
    int status;
    if (child == 0) {
        char path[WORLD_PATH];
        char *environment[] = {"LD_PRELOAD=" RUNTIME ":" LIBRARY, NO_LEAK_CHECK, path, NULL};
        snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", libraries);
        execve(argv[0], (char *const *)argv, environment);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(a_program_without_a_driver_sees_none)
{
    CHECK_EQUAL(run((const char *const[]){LOOKUP, "no-driver", NULL}, "/nonexistent"), 0);
}

TEST(answers_are_replaced_only_where_they_are_the_drivers)
{
    CHECK_EQUAL(run((const char *const[]){LOOKUP, "driver", NULL}, FAKEGPU), 0);
}
