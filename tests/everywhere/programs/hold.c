/* Takes 1 GiB of GPU memory, says so, and holds it until its standard input ends. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    uint64_t pointer;
    int device;

    if (!library || ((int (*)(unsigned))dlsym(library, "cuInit"))(0) || ((int (*)(int *, int))dlsym(library, "cuDeviceGet"))(&device, 0) ||
        ((int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, device) ||
        ((int (*)(void *))dlsym(library, "cuCtxSetCurrent"))(context) ||
        ((int (*)(uint64_t *, size_t))dlsym(library, "cuMemAlloc_v2"))(&pointer, 1ull << 30))
        return 1;
    puts("holding");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
