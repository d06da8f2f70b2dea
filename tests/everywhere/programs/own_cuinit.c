/* A program with a function of its own that is called like one of CUDA's. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    return 4711 + (int)flags;
}

int main(void)
{
    if (cuInit(0) != 4711)
        return 1;
    if (dlsym(RTLD_DEFAULT, "cuInit") != (void *)cuInit)
        return 2;
    return dlsym(dlopen(0, RTLD_NOW), "cuInit") == (void *)cuInit ? 0 : 3;
}
