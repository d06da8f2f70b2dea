#define _GNU_SOURCE
#include "stepping.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static int signal_it_stopped_by(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    return WSTOPSIG(status);
}

struct stepped stepped(void (*prepare)(void), void (*act)(void), unsigned long instructions)
{
    if (RUNTIME[0])
        skip("instruction by instruction only what ships");
    struct stepped process = {fork(), false};
    CHECK(process.pid >= 0);
    if (process.pid == 0) {
        if (prepare)
            prepare();
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        act();
        raise(SIGSTOP);
        _exit(0);
    }
    signal_it_stopped_by(process.pid);
    for (unsigned long i = 0; i < instructions && !process.ended; i++) {
        CHECK(ptrace(PTRACE_SINGLESTEP, process.pid, 0, 0) == 0);
        process.ended = signal_it_stopped_by(process.pid) == SIGSTOP;
    }
    return process;
}

void stepped_go_on(const struct stepped *process)
{
    if (process->ended)
        return;
    CHECK(ptrace(PTRACE_CONT, process->pid, 0, 0) == 0);
    CHECK_EQUAL(signal_it_stopped_by(process->pid), SIGSTOP);
}

void stepped_kill(const struct stepped *process)
{
    int status;
    kill(process->pid, SIGKILL);
    CHECK(waitpid(process->pid, &status, 0) == process->pid);
}
