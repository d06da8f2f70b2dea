/* Allocates and frees device memory until its standard input ends, then says how often and what went wrong.
 *
 * It holds up to 32 MiB and asks the library three things in turn: to allocate, to free, and how much there is. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 16, BLOCK = 2 << 20, PAUSE_MS = 20 };

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
        printf("%s: %d\n", what, result);
        exit(1);
    }
}

int main(void)
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
    int (*give_back)(unsigned long long) = (int (*)(unsigned long long))find(cuda, "cuMemFree_v2");
    int (*get_info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))find(cuda, "cuMemGetInfo_v2");

    void *context;
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");

    unsigned long long blocks[BLOCKS] = {0};
    unsigned long allocations = 0;
    size_t unused, total;
    must(get_info(&unused, &total), "cuMemGetInfo");
    printf("total %zu\n", total);
    fflush(stdout);
    for (struct pollfd input = {.fd = 0, .events = POLLIN}; poll(&input, 1, PAUSE_MS) == 0;) {
        unsigned long long *block = &blocks[allocations % BLOCKS];
        size_t again;
        if (*block)
            must(give_back(*block), "cuMemFree");
        must(allocate(block, BLOCK), "cuMemAlloc");
        must(get_info(&unused, &again), "cuMemGetInfo");
        must(again != total, "total changed");
        allocations++;
    }
    printf("allocations %lu\n", allocations);
    return 0;
}
