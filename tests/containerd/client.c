/* A program that uses the GPU: `client [hold] MIB...` allocates each, prints the driver's result of each on a line, and
 * with `hold` keeps what it got until it is ended. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *find(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (!address) {
        fprintf(stderr, "%s is missing\n", name);
        exit(2);
    }
    return address;
}

static void must(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

int main(int count, char **words)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*init)(unsigned) = (int (*)(unsigned))find(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find(cuda, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = (int (*)(void *))find(cuda, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))find(cuda, "cuMemAlloc_v2");
    int (*get_info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))find(cuda, "cuMemGetInfo_v2");

    void *context;
    size_t unused, total;
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    must(get_info(&unused, &total), "cuMemGetInfo");
    printf("total %zu\n", total);

    int hold = count > 1 && strcmp(words[1], "hold") == 0;
    for (int index = 1 + hold; index < count; index++) {
        unsigned long long address;
        printf("%s MiB: %d\n", words[index], allocate(&address, (size_t)strtoul(words[index], NULL, 10) << 20));
    }
    fflush(stdout);
    while (hold)
        pause();
    return 0;
}
