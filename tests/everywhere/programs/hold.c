/* Takes GPU memory, HOLD_MIB or else 1 GiB, says so, and holds it until its standard input ends. With -Dmain=allocate a plugin. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(void);

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    const char *mib = getenv("HOLD_MIB");
    uint64_t pointer, bytes = (mib ? strtoull(mib, NULL, 10) : 1024) << 20;
    int device;

    if (!library || ((int (*)(unsigned))dlsym(library, "cuInit"))(0) || ((int (*)(int *, int))dlsym(library, "cuDeviceGet"))(&device, 0) ||
        ((int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, device) ||
        ((int (*)(void *))dlsym(library, "cuCtxSetCurrent"))(context) ||
        ((int (*)(uint64_t *, size_t))dlsym(library, "cuMemAlloc_v2"))(&pointer, bytes))
        return 1;
    puts("holding");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
