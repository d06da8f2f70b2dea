/* Prints what a program may see of a preloaded library at its start and after looking names up. What the arguments say:
 * `close` closes every descriptor before, `tiny` does it on a stack of 16 KiB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int print_object(struct dl_phdr_info *object, size_t bytes, void *data)
{
    (void)bytes;
    (void)data;
    if (!strstr(object->dlpi_name, "vdso"))
        printf("object %s\n", object->dlpi_name);
    return 0;
}

static void print_name(const char *name)
{
    printf("dlsym %s: ", name);
    printf("%s, next ", dlsym(RTLD_DEFAULT, name) ? "found" : dlerror());
    puts(dlsym(RTLD_NEXT, name) ? "found" : dlerror());
}

static void *look_up(void *unused)
{
    static const char *const names[] = {"curl_easy_init", "cupsGetDests", "nvme_open", "cudaMalloc", "cu", "cuBig", "malloc"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        print_name(names[i]);
    return unused;
}

int main(int argc, char **argv)
{
    int at_start = errno;
    char name[16] = "";

    write(STDERR_FILENO, "main\n", 5);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "close") == 0)
            for (int file = 3; file < 4096; file++)
                close(file);
    printf("errno %d\n", at_start);
    mode_t mask = umask(0);
    umask(mask);
    printf("umask %o\n", mask);
    for (char **variable = environ; *variable; variable++)
        printf("environment %s\n", *variable);
    for (int signal = 1; signal < NSIG; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            printf("signal %d %s\n", signal, action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&blocked, signal) == 1)
            printf("blocked %d\n", signal);
    for (int file = 0; file < 1024; file++)
        if (fcntl(file, F_GETFD) >= 0)
            printf("descriptor %d\n", file);
    prctl(PR_GET_NAME, name);
    printf("name %s, dumpable %d\n", name, prctl(PR_GET_DUMPABLE));
    dl_iterate_phdr(print_object, NULL);
    if (argc > 1 && strcmp(argv[1], "tiny") == 0) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (pthread_attr_setstacksize(&attributes, 16384) || pthread_create(&thread, &attributes, look_up, NULL))
            return 3;
        pthread_join(thread, NULL);
    } else {
        look_up(NULL);
    }
    errno = 4711;
    dlsym(RTLD_DEFAULT, "malloc");
    printf("errno %d\n", errno);
    return 7;
}
