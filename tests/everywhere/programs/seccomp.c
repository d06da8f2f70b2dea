/* Starts a program under a seccomp filter. Arguments: a file of instructions (struct sock_filter), the program and its own. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static struct sock_filter filter[BPF_MAXINSNS];
    FILE *file = argc > 2 ? fopen(argv[1], "rbe") : NULL;
    size_t length = file ? fread(filter, sizeof(filter[0]), BPF_MAXINSNS, file) : 0;
    struct sock_fprog program = {(unsigned short)length, filter};
    if (length == 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp FILE PROGRAM [ARGUMENT]...");
        return 125;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
