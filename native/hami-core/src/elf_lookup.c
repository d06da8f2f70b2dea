#define _GNU_SOURCE
#include "elf_lookup.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

#define OWN_SONAME "libvgpu.so"

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* By the linker, where the file begins in memory and ends. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

const ElfW(Dyn) *elf_self(void)
{
    return _DYNAMIC;
}

bool text_equal(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
    ElfW(Xword) soname;
};

/* glibc has added the base to these addresses when it loaded the object, musl has not. */
static const void *at(ElfW(Addr) base, ElfW(Addr) pointer)
{
    return (const void *)(pointer < base ? pointer + base : pointer);
}

static struct tables read_tables(ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
    struct tables tables = {NULL, NULL, NULL, NULL, 0};
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: tables.symbols = at(base, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: tables.strings = at(base, dynamic->d_un.d_ptr); break;
        case DT_GNU_HASH: tables.gnu_hash = at(base, dynamic->d_un.d_ptr); break;
        case DT_HASH: tables.hash = at(base, dynamic->d_un.d_ptr); break;
        case DT_SONAME: tables.soname = dynamic->d_un.d_val; break;
        default: break;
        }
    }
    return tables;
}

const char *elf_soname(ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
    struct tables tables = read_tables(base, dynamic);
    return tables.soname && tables.strings ? tables.strings + tables.soname : NULL;
}

static bool defines(const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[index];
    return symbol->st_shndx != SHN_UNDEF && text_equal(tables->strings + symbol->st_name, name);
}

static const ElfW(Sym) *find_by_gnu_hash(const struct tables *tables, const char *name)
{
    const uint32_t *header = tables->gnu_hash;
    uint32_t buckets = header[0], first = header[1], bloom_words = header[2];
    const uint32_t *bucket = header + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381;

    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    if (buckets == 0)
        return NULL;
    uint32_t index = bucket[hash % buckets];
    if (index < first)
        return NULL;
    do {
        uint32_t other = chain[index - first];
        if ((other | 1) == (hash | 1) && defines(tables, index, name))
            return &tables->symbols[index];
        if (other & 1)
            return NULL;
    } while (++index);
    return NULL;
}

static const ElfW(Sym) *find_by_hash(const struct tables *tables, const char *name)
{
    uint32_t buckets = tables->hash[0];
    const uint32_t *bucket = tables->hash + 2, *chain = bucket + buckets;
    uint32_t hash = 0;

    for (const char *c = name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        uint32_t high = hash & 0xf0000000u;
        hash = (hash ^ (high >> 24)) & ~high;
    }
    if (buckets == 0)
        return NULL;
    for (uint32_t index = bucket[hash % buckets]; index != STN_UNDEF; index = chain[index])
        if (defines(tables, index, name))
            return &tables->symbols[index];
    return NULL;
}

void *elf_symbol(ElfW(Addr) base, const ElfW(Dyn) *dynamic, const char *name)
{
    struct tables tables = read_tables(base, dynamic);
    const ElfW(Sym) *symbol = NULL;
    if (!tables.symbols || !tables.strings)
        return NULL;
    if (tables.gnu_hash)
        symbol = find_by_gnu_hash(&tables, name);
    else if (tables.hash)
        symbol = find_by_hash(&tables, name);
    if (!symbol)
        return NULL;
    void *address = (void *)(base + symbol->st_value);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
        address = ((void *(*)(void))address)();
    return address;
}

void *elf_own_symbol(const char *name)
{
    return elf_symbol((ElfW(Addr))&__ehdr_start, _DYNAMIC, name);
}

bool elf_is_own(const void *address)
{
    return (uintptr_t)address - (uintptr_t)&__ehdr_start < (uintptr_t)_end - (uintptr_t)&__ehdr_start;
}

/* NULL where the kernel started something else than the program: musl's loader with the program as its argument. It has no PT_PHDR. */
static const struct r_debug *find_debug(void)
{
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
    unsigned long count = getauxval(AT_PHNUM);
    const ElfW(Phdr) *own_header = NULL, *dynamic_header = NULL;

    for (unsigned long i = 0; headers && i < count; i++) {
        if (headers[i].p_type == PT_PHDR)
            own_header = &headers[i];
        else if (headers[i].p_type == PT_DYNAMIC)
            dynamic_header = &headers[i];
    }
    if (!own_header || !dynamic_header)
        return NULL;
    ElfW(Addr) base = (ElfW(Addr))headers - own_header->p_vaddr;
    for (const ElfW(Dyn) *entry = (const void *)(base + dynamic_header->p_vaddr); entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_DEBUG)
            return (const struct r_debug *)entry->d_un.d_ptr;
    return NULL;
}

/* Another copy of this library, as seen from a namespace that dlmopen made. */
static bool is_a_copy(ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
    const char *soname = elf_soname(base, dynamic);
    return soname && text_equal(soname, OWN_SONAME);
}

static void *find_behind_us(const struct link_map *objects, const char *name)
{
    const struct link_map *first = objects;
    for (const struct link_map *object = objects; object; object = object->l_next)
        if (object->l_ld == _DYNAMIC)
            first = object->l_next;
    for (const struct link_map *object = first; object; object = object->l_next) {
        void *address = object->l_ld && !is_a_copy(object->l_addr, object->l_ld) ? elf_symbol(object->l_addr, object->l_ld, name) : NULL;
        if (address)
            return address;
    }
    return NULL;
}

struct wanted {
    const char *name;
    void *address;
    bool behind_us;
};

static int visit(struct dl_phdr_info *object, size_t bytes, void *data)
{
    struct wanted *wanted = data;
    const ElfW(Dyn) *dynamic = NULL;
    (void)bytes;

    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    if (dynamic == _DYNAMIC)
        wanted->behind_us = true;
    else if (dynamic && wanted->behind_us && !is_a_copy(object->dlpi_addr, dynamic))
        wanted->address = elf_symbol(object->dlpi_addr, dynamic, wanted->name);
    return wanted->address != NULL;
}

void *elf_next_symbol(const char *name)
{
    const struct r_debug *debug = find_debug();
    struct wanted wanted = {name, NULL, false};
    if (debug && debug->r_map)
        return find_behind_us(debug->r_map, name);
    /* A program without DT_DEBUG, as this library is when it is executed, or one that is not known. */
    dl_iterate_phdr(visit, &wanted);
    return wanted.address;
}
