/* How a program of the tests finds the driver at run time and makes the first card's context its own. It ends by itself: with 2
 * where there is no such function, with 1 and the driver's result where a call fails. */
#ifndef CUDA_CLIENT_H
#define CUDA_CLIENT_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct cuda_client {
    int (*allocate)(unsigned long long *address, size_t bytes);
    int (*give_back)(unsigned long long address);
    int (*get_info)(size_t *available, size_t *total);
};

static inline void *find(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(2);
    }
    return address;
}

static inline void must(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

static inline struct cuda_client cuda_begin(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned) = (int (*)(unsigned))find(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find(cuda, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = (int (*)(void *))find(cuda, "cuCtxSetCurrent");
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    return (struct cuda_client){
        (int (*)(unsigned long long *, size_t))find(cuda, "cuMemAlloc_v2"),
        (int (*)(unsigned long long))find(cuda, "cuMemFree_v2"),
        (int (*)(size_t *, size_t *))find(cuda, "cuMemGetInfo_v2"),
    };
}

#endif
