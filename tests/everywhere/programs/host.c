/* Opens a plugin and calls its function `allocate`. Arguments: the plugin, and `deepbind` or nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int mode = RTLD_NOW | RTLD_LOCAL;
#ifdef RTLD_DEEPBIND
    if (argc > 2 && strcmp(argv[2], "deepbind") == 0)
        mode |= RTLD_DEEPBIND;
#endif
    void *plugin = argc > 1 ? dlopen(argv[1], mode) : NULL;
    if (!plugin) {
        printf("%s\n", dlerror());
        return 1;
    }
    return ((int (*)(void))dlsym(plugin, "allocate"))();
}
