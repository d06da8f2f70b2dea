/* Takes GPU memory after finding CUDA in one way, and prints what came of it: `capped` if the card looks as large as the limit and
 * 3 GiB of 4 were given and 2 more refused; `not capped` if the card is all there and both were given; else what it was.
 *
 * Arguments: the way, then what it needs (a path). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)

#ifdef __GLIBC__
typedef void *finder(void *, const char *);
#endif
typedef int get_proc_address(const char *, void **, int, uint64_t);
typedef int get_proc_address_v2(const char *, void **, int, uint64_t, int *);

#ifdef LINKED
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemFree_v2(uint64_t);
static struct {
    const char *name;
    void *address;
} linked[] = {{"cuInit", cuInit},
              {"cuDeviceGet", cuDeviceGet},
              {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain},
              {"cuCtxSetCurrent", cuCtxSetCurrent},
              {"cuMemAlloc_v2", cuMemAlloc_v2},
              {"cuMemGetInfo_v2", cuMemGetInfo_v2},
              {"cuMemFree_v2", cuMemFree_v2}};

static void *find(const char *name)
{
    for (size_t i = 0; i < sizeof(linked) / sizeof(linked[0]); i++)
        if (strcmp(linked[i].name, name) == 0)
            return linked[i].address;
    return NULL;
}
#else
static const char *way, *argument;

static void *needs(void *handle)
{
    if (!handle) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return handle;
}

#ifdef __GLIBC__
/* An interposer's way: the version of dlsym that it knows. */
static finder *chained(const char *version)
{
    return (finder *)needs(dlvsym(RTLD_DEFAULT, "dlsym", version));
}
#endif

static void *by_cuda(const char *name)
{
    void *library = needs(dlopen("libcuda.so.1", RTLD_NOW)), *address = NULL;
    char base[64];
    int status = 0;
    snprintf(base, sizeof(base), "%s", name);
    char *suffix = strstr(base, "_v2");
    if (suffix)
        *suffix = '\0';
    if (strcmp(way, "cuGetProcAddress") == 0)
        ((get_proc_address *)needs(dlsym(library, "cuGetProcAddress")))(base, &address, 11030, 0);
    else
        ((get_proc_address_v2 *)needs(dlsym(library, "cuGetProcAddress_v2")))(base, &address, 12000, 0, &status);
    return address;
}

static void *find(const char *name)
{
    static void *library;
    if (strncmp(way, "cuGetProcAddress", 16) == 0)
        return by_cuda(name);
    if (library)
        return dlsym(library, name);
#ifdef __GLIBC__
    if (strcmp(way, "dlvsym") == 0)
        return chained(argument)(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (strcmp(way, "dlmopen") == 0)
        return dlsym(library = needs(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)), name);
#endif
    if (strcmp(way, "RTLD_DEFAULT") == 0)
        return needs(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) ? dlsym(RTLD_DEFAULT, name) : NULL;
    if (strcmp(way, "RTLD_NEXT") == 0)
        return needs(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) ? dlsym(RTLD_NEXT, name) : NULL;
    if (strcmp(way, "path") == 0)
        library = needs(dlopen(argument, RTLD_NOW));
    else if (strcmp(way, "main") == 0)
        library = needs(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) ? dlopen(NULL, RTLD_NOW) : NULL;
    else if (strcmp(way, "dlopen") == 0)
        library = needs(dlopen("libcuda.so.1", RTLD_NOW));
    else if (strcmp(way, "reopened") == 0) {
        library = needs(dlopen("libcuda.so.1", RTLD_NOW));
        ((int (*)(unsigned))needs(dlsym(library, "cuInit")))(0);
        dlclose(library);
        library = needs(dlopen("libcuda.so.1", RTLD_NOW));
    } else {
        printf("unknown way %s\n", way);
        exit(1);
    }
    return dlsym(library, name);
}
#endif

int allocate(void);

int allocate(void)
{
#define FIND(name, parameters) int(*name) parameters = (int(*) parameters)find(#name)
    FIND(cuInit, (unsigned));
    FIND(cuDeviceGet, (int *, int));
    FIND(cuDevicePrimaryCtxRetain, (void **, int));
    FIND(cuCtxSetCurrent, (void *));
    FIND(cuMemAlloc_v2, (uint64_t *, size_t));
    FIND(cuMemGetInfo_v2, (size_t *, size_t *));
    FIND(cuMemFree_v2, (uint64_t));
    int device = 0, result;
    void *context;
    uint64_t three = 0, two = 0;
    size_t free_bytes = 0, total = 0;

    if (!cuInit || !cuDeviceGet || !cuDevicePrimaryCtxRetain || !cuCtxSetCurrent || !cuMemAlloc_v2 || !cuMemGetInfo_v2 ||
        !cuMemFree_v2) {
        puts("not found");
        return 1;
    }
    if ((result = cuInit(0)) || (result = cuDeviceGet(&device, 0)) || (result = cuDevicePrimaryCtxRetain(&context, device)) ||
        (result = cuCtxSetCurrent(context)) || (result = cuMemGetInfo_v2(&free_bytes, &total))) {
        printf("CUDA answers %d\n", result);
        return 1;
    }
    int first = cuMemAlloc_v2(&three, 3 * GIB), second = cuMemAlloc_v2(&two, 2 * GIB);
    if (first == 0)
        first = cuMemFree_v2(three);
    if (second == 0)
        cuMemFree_v2(two);
    if (first == 0 && second == 2 && total == 4 * GIB)
        puts("capped");
    else if (first == 0 && second == 0 && total > 4 * GIB)
        puts("not capped");
    else
        printf("%d, %d, a card of %zu bytes\n", first, second, total);
    return 0;
}

#ifndef PLUGIN
int main(int argc, char **argv)
{
#ifndef LINKED
    way = argc > 1 ? argv[1] : "";
    argument = argc > 2 ? argv[2] : NULL;
#endif
    (void)argc;
    (void)argv;
    return allocate();
}
#endif
