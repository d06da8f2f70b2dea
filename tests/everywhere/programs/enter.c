/* Starts a program in another root, with namespaces of its own for mounts and processes, /proc and nothing in the environment but
 * what is given. Arguments: the root, NAME=VALUE…, the program's path, its arguments. Exit status: the program's, 128 + n for a
 * signal n. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static void needs(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(125);
    }
}

int main(int argc, char **argv)
{
    char *environment[64] = {NULL};
    int word = 2, count = 0, status;

    while (word < argc && strchr(argv[word], '=') && count < 63)
        environment[count++] = argv[word++];
    if (word >= argc) {
        fputs("enter ROOT [NAME=VALUE]... PROGRAM [ARGUMENT]...\n", stderr);
        return 125;
    }
    needs(unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare");
    pid_t child = fork();
    needs(child, "fork");
    if (child == 0) {
        needs(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
        needs(chdir(argv[1]), argv[1]);
        needs(mount("proc", "proc", "proc", 0, NULL), "mount proc");
        needs(chroot("."), "chroot");
        execve(argv[word], argv + word, environment);
        perror(argv[word]);
        _exit(127);
    }
    needs(waitpid(child, &status, 0), "wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
