/* Lines on stderr, whatever stderr is: a program must not notice that one was written. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/message.h"
#include "harness.h"

static int ends[2];

static void make_pipe_of_stderr(void)
{
    CHECK(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO && close(ends[1]) == 0);
}

static void say(void)
{
    errno = ENOTTY;
    message(MESSAGE_ERROR, "%s %d", "said", 7);
    CHECK_EQUAL(errno, ENOTTY);
}

static bool sigpipe_is(int (*held)(sigset_t *set))
{
    sigset_t set;
    CHECK(held(&set) == 0);
    return sigismember(&set, SIGPIPE);
}

static int blocked(sigset_t *set)
{
    return sigprocmask(SIG_BLOCK, NULL, set);
}

TEST(a_line_is_one_write_with_a_name_before_it)
{
    char text[64] = "";
    make_pipe_of_stderr();
    say();
    CHECK(read(ends[0], text, sizeof(text) - 1) > 0);
    CHECK_TEXT(text, "libvgpu: said 7\n");
}

TEST(a_line_that_is_too_long_is_cut)
{
    static char text[4 * MESSAGE_BYTES], long_text[2 * MESSAGE_BYTES];
    memset(long_text, 'x', sizeof(long_text) - 1);
    make_pipe_of_stderr();
    message(MESSAGE_ERROR, "%s", long_text);
    ssize_t length = read(ends[0], text, sizeof(text));
    CHECK(length > MESSAGE_BYTES / 2 && length <= MESSAGE_BYTES && text[length - 1] == '\n');
}

TEST(a_closed_pipe_ends_no_program)
{
    signal(SIGPIPE, SIG_DFL);
    make_pipe_of_stderr();
    close(ends[0]);
    say();
    CHECK(!sigpipe_is(sigpending) && !sigpipe_is(blocked));
}

TEST(a_signal_of_the_program_that_waits_is_left_to_it)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    raise(SIGPIPE);
    make_pipe_of_stderr();
    close(ends[0]);
    say();
    CHECK(sigpipe_is(sigpending) && sigpipe_is(blocked));
}

TEST(a_full_pipe_is_not_waited_for)
{
    make_pipe_of_stderr();
    CHECK(fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK) == 0);
    while (write(STDERR_FILENO, "x", 1) == 1)
        ;
    CHECK(fcntl(STDERR_FILENO, F_SETFL, 0) == 0);
    alarm(10);
    say();
}

TEST(a_program_without_stderr_is_told_nothing)
{
    close(STDERR_FILENO);
    say();
}

TEST(warnings_are_said_from_level_2_up)
{
    char text[64] = "";
    make_pipe_of_stderr();
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    setenv("LIBCUDA_LOG_LEVEL", "1", 1);
    message(MESSAGE_WARNING, "not said");
    CHECK(read(ends[0], text, sizeof(text) - 1) < 0);
    message(MESSAGE_ERROR, "said");
    CHECK(read(ends[0], text, sizeof(text) - 1) > 0);
    setenv("LIBCUDA_LOG_LEVEL", "2", 1);
    message(MESSAGE_WARNING, "said too");
    CHECK(read(ends[0], text, sizeof(text) - 1) > 0);
}
