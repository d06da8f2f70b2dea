#define _GNU_SOURCE
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIME_LIMIT_SECONDS = 300, STATUS_FAILED = 1, STATUS_SKIPPED = 77 };

/* With a sanitized build: what a process holds hangs on a page of its own mapping, where the leak checker does not look, and one test
 * runs under ptrace, where it cannot. */
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static struct test *first, **last = &first;

void test_register(struct test *test)
{
    *last = test;
    last = &test->next;
}

void check_failed(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    printf("%s:%d: ", file, line);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    exit(STATUS_FAILED);
}

void check_equal(const char *file, int line, const char *what, uint64_t got, uint64_t wanted)
{
    if (got != wanted)
        check_failed(file, line, "%s is %llu, not %llu", what, (unsigned long long)got, (unsigned long long)wanted);
}

void check_text(const char *file, int line, const char *what, const char *got, const char *wanted)
{
    if (strcmp(got, wanted) != 0)
        check_failed(file, line, "%s is \"%s\", not \"%s\"", what, got, wanted);
}

void check_has(const char *file, int line, const char *what, const char *got, const char *wanted)
{
    if (!strstr(got, wanted))
        check_failed(file, line, "%s is \"%s\", without \"%s\"", what, got, wanted);
}

void skip(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    exit(STATUS_SKIPPED);
}

static int run(const struct test *test)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        alarm(TIME_LIMIT_SECONDS);
        test->run();
        exit(0);
    }
    if (child < 0) {
        perror("fork");
        exit(STATUS_FAILED);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    kill(-child, SIGKILL); /* what the test started */
    if (WIFSIGNALED(status))
        printf("ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : STATUS_FAILED;
}

/* Without names, all. */
static bool chosen(const struct test *test, char *const *names)
{
    bool any = false;
    for (char *const *name = names; *name && !any; name++)
        any = strstr(test->file, *name) || strstr(test->name, *name);
    return any || !*names;
}

/* Arguments choose tests by a part of their file's or their own name; after -x the first failure is the last test. */
int main(int argc, char **argv)
{
    unsigned passed = 0, failed = 0, skipped = 0;
    bool first_failure_ends = argc > 1 && strcmp(argv[1], "-x") == 0;

    signal(SIGPIPE, SIG_IGN);
    for (const struct test *test = first; test && !(first_failure_ends && failed); test = test->next) {
        if (!chosen(test, argv + 1 + first_failure_ends))
            continue;
        int status = run(test);
        passed += status == 0;
        skipped += status == STATUS_SKIPPED;
        failed += status != 0 && status != STATUS_SKIPPED;
        printf("%-8s%s %s\n", status == 0 ? "ok" : status == STATUS_SKIPPED ? "skipped" : "FAILED", test->file, test->name);
    }
    if (skipped)
        printf("%u skipped\n", skipped);
    printf("%u passed, %u failed\n", passed, failed);
    return failed || passed + skipped == 0;
}
