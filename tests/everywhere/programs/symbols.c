/* Enumerates the symbols of every object but the preloaded one, as debuggers and crash reporters do, asks dlsym for each, and prints
 * which object it is found in. Argument: the path of the preloaded object, of which it says only whether its symbols can be read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *preloaded;

/* glibc adds the base to what the dynamic section holds, but not in the vDSO. */
static const void *at(ElfW(Addr) base, ElfW(Addr) pointer)
{
    return (const void *)(pointer < base ? pointer + base : pointer);
}

static size_t count_of(const uint32_t *gnu_hash)
{
    uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom = gnu_hash[2], last = 0;
    const uint32_t *bucket = gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static void ask(const char *name)
{
    Dl_info found;
    void *address = dlsym(RTLD_DEFAULT, name);
    /* What is interposed is found in the library that interposes. */
    if (strcmp(name, "dlsym") != 0 && strcmp(name, "dlmopen") != 0)
        printf("%s: %s\n", name, !address ? "absent" : dladdr(address, &found) ? found.dli_fname : "nowhere");
}

static int enumerate(struct dl_phdr_info *object, size_t bytes, void *data)
{
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *gnu_hash = NULL;
    (void)bytes;
    (void)data;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        for (const ElfW(Dyn) *entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr); entry->d_tag; entry++) {
            if (entry->d_tag == DT_SYMTAB)
                symbols = at(object->dlpi_addr, entry->d_un.d_ptr);
            else if (entry->d_tag == DT_STRTAB)
                strings = at(object->dlpi_addr, entry->d_un.d_ptr);
            else if (entry->d_tag == DT_GNU_HASH)
                gnu_hash = at(object->dlpi_addr, entry->d_un.d_ptr);
        }
    }
    if (!symbols || !strings || !gnu_hash)
        return 0;
    size_t count = count_of(gnu_hash), read = 0;
    int ours = strcmp(object->dlpi_name, preloaded) == 0;
    for (size_t i = 1; i < count; i++) {
        read += strlen(strings + symbols[i].st_name) > 0;
        if (!ours)
            ask(strings + symbols[i].st_name);
    }
    printf("object %s: %s\n", object->dlpi_name, read == count - 1 ? "read" : "broken");
    return 0;
}

int main(int argc, char **argv)
{
    preloaded = argc > 1 ? argv[1] : "";
    return dl_iterate_phdr(enumerate, NULL);
}
