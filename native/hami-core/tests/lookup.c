/* Looks functions up in every way and checks what it gets; exit status 0 if all is right, else the line that is not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RIGHT(condition)                                                                                                           \
    do {                                                                                                                           \
        if (!(condition))                                                                                                          \
            exit(__LINE__ & 0xff ? __LINE__ & 0xff : 1);                                                                           \
    } while (0)

extern int cuInit(unsigned flags) __attribute__((weak));

static int object_is(const void *address, const char *name)
{
    Dl_info info;
    return address && dladdr(address, &info) && strstr(info.dli_fname, name) != NULL;
}

static void without_driver(void)
{
    RIGHT(!dlsym(RTLD_DEFAULT, "cuInit"));
    RIGHT(strstr(dlerror(), "cuInit"));
    RIGHT(!dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo"));
    RIGHT(!dlsym(RTLD_DEFAULT, "curl_easy_init"));
    RIGHT(!dlopen("libcuda.so.1", RTLD_NOW));
    /* A weak reference and RTLD_NEXT find our name all the same: one defined error. */
    RIGHT(cuInit && cuInit(0) == 34);
    RIGHT(dlsym(RTLD_NEXT, "cuInit") == (void *)cuInit);
    RIGHT(object_is(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), "libc"));
    /* Twice: the second answer must be the first. */
    RIGHT(object_is(dlsym(RTLD_NEXT, "gnu_get_libc_version"), "libc"));
    RIGHT(object_is(dlsym(RTLD_NEXT, "gnu_get_libc_version"), "libc"));
}

static void with_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*get)(const char *, void **, int, uint64_t, int *);
    void *address = NULL;
    int status;

    RIGHT(library);
    RIGHT(object_is(dlsym(library, "cuInit"), "libvgpu.so"));
    RIGHT(object_is(dlsym(library, "cuMemAlloc_v2"), "libvgpu.so"));
    RIGHT(object_is(dlsym(library, "cuDeviceGetName"), "libcuda.so"));
    get = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    RIGHT(object_is((void *)get, "libvgpu.so"));
    RIGHT(get("cuMemAlloc", &address, 12000, 0, &status) == 0 && object_is(address, "libvgpu.so"));
    RIGHT(address == dlsym(library, "cuMemAlloc_v2"));
    RIGHT(get("cuMemAlloc", &address, 2000, 0, &status) == 0 && address == dlsym(library, "cuMemAlloc"));
    RIGHT(get("cuDeviceGetName", &address, 12000, 0, &status) == 0 && object_is(address, "libcuda.so"));
    RIGHT(get("cuGetProcAddress", &address, 12000, 0, &status) == 0 && address == (void *)get);
    RIGHT(get("cuNoSuchFunction", &address, 12000, 0, &status) == 0 && status == 1 && !address);
    RIGHT(!dlsym(library, "cuNoSuchFunction"));
    RIGHT(object_is(dlsym(RTLD_DEFAULT, "dlsym"), "libvgpu.so"));
    RIGHT(object_is(dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym"), "libvgpu.so"));
    /* A library of somebody else that has a function of this name. */
    void *own = dlopen(OWN_CUINIT, RTLD_NOW | RTLD_LOCAL);
    RIGHT(own && object_is(dlsym(own, "cuInit"), "own_cuinit"));
    RIGHT(((int (*)(unsigned))dlsym(own, "cuInit"))(0) == 4711);
    /* Closed and opened again. */
    void *before = dlsym(library, "cuMemAlloc_v2");
    dlclose(library);
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    RIGHT(dlsym(library, "cuMemAlloc_v2") == before);
    RIGHT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == before);
    RIGHT(object_is(dlsym(RTLD_DEFAULT, "cuDeviceGetName"), "libcuda.so"));
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "driver") == 0)
        with_driver();
    else
        without_driver();
    return 0;
}
