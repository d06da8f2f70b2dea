/* Opens and closes libraries in namespaces of their own, and fails to, more often than there are namespaces. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    for (int i = 0; i < 100; i++) {
        if (dlmopen(LM_ID_NEWLM, "/nonexistent.so", RTLD_NOW) || !strstr(dlerror(), "/nonexistent.so: cannot open"))
            return 1;
        void *library = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
        if (!library) {
            puts(dlerror());
            return 2;
        }
        if (!dlsym(library, "cos") || dlsym(library, "cuInit"))
            return 3;
        dlclose(library);
    }
    Lmid_t first, second;
    void *a = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW), *b = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    if (!a || !b || dlinfo(a, RTLD_DI_LMID, &first) || dlinfo(b, RTLD_DI_LMID, &second) || first == second)
        return 4;
    if (dlerror())
        return 5;
    void *c = dlmopen(first, "libdl.so.2", RTLD_NOW);
    Lmid_t third;
    return c && dlinfo(c, RTLD_DI_LMID, &third) == 0 && third == first ? 0 : 6;
}
