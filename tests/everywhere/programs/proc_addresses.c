/* Asks a driver's cuGetProcAddress, both of them, for every name on standard input with every version and flag, and prints what each
 * answer is: result, status, the object and name of the function. Argument: path of libcuda. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const int versions[] = {0, 2000, 3020, 4000, 6050, 7000, 9020, 10000, 11020, 11030, 11070, 12000, 12040, 13000, 99000};
static const uint64_t flags[] = {0, 1, 2, 3, 4};

static void print(const char *name, int version, uint64_t flag, int result, int status, const void *address)
{
    Dl_info found = {.dli_fname = "-", .dli_sname = "-"};
    if (address && (!dladdr(address, &found) || found.dli_saddr != address))
        found.dli_sname = "?";
    const char *file = strrchr(found.dli_fname, '/');
    printf("%s %d %d %d %d %s %s\n", name, version, (int)flag, result, status, file ? file + 1 : found.dli_fname, found.dli_sname);
}

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    char name[256];
    if (!library) {
        puts(dlerror());
        return 1;
    }
    int (*first)(const char *, void **, int, uint64_t) = (int (*)(const char *, void **, int, uint64_t))dlsym(library, "cuGetProcAddress");
    int (*second)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    while (fgets(name, sizeof(name), stdin)) {
        name[strcspn(name, "\n")] = '\0';
        for (unsigned v = 0; v < sizeof(versions) / sizeof(versions[0]); v++) {
            for (unsigned f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
                void *address = NULL;
                int status = -1, result = first(name, &address, versions[v], flags[f]);
                print(name, versions[v], flags[f], result, status, address);
                address = NULL;
                result = second(name, &address, versions[v], flags[f], &status);
                print(name, versions[v], flags[f], result, status, address);
            }
        }
    }
    return 0;
}
