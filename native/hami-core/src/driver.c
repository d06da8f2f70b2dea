#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>

#include "clock.h"
#include "elf_lookup.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum search { NOT_FOUND, FILLING, FOUND };

static uint32_t cuda_search, nvml_search;

static uint32_t state_of(const uint32_t *search)
{
    return __atomic_load_n(search, __ATOMIC_ACQUIRE);
}

static CUresult absent_from_cuda(void)
{
    return state_of(&cuda_search) == FOUND ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_STUB_LIBRARY;
}

static nvmlReturn_t absent_from_nvml(void)
{
    return state_of(&nvml_search) == FOUND ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_LIBRARY_NOT_FOUND;
}

#define CUDA(name, parameters) static CUresult absent_##name parameters { return absent_from_cuda(); }
#define NVML(name, parameters) static nvmlReturn_t absent_##name parameters { return absent_from_nvml(); }
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML

struct cuda_functions cuda = {
#define CUDA(name, parameters) .name = absent_##name,
#define NVML(name, parameters)
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
};

struct nvml_functions nvml = {
#define CUDA(name, parameters)
#define NVML(name, parameters) .name = absent_##name,
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
};

bool driver_has(void *const *function)
{
    return !elf_is_own(*function); /* else a stand-in */
}

struct wanted {
    const char *soname;
    uint32_t *search;
    void (*fill)(ElfW(Addr) base, const ElfW(Dyn) *dynamic);
    char path[4096];
};

static void fill_one(void **function, ElfW(Addr) base, const ElfW(Dyn) *dynamic, const char *name)
{
    void *address = elf_symbol(base, dynamic, name);
    if (address)
        __atomic_store_n(function, address, __ATOMIC_RELEASE);
}

static void fill_cuda(ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
#define CUDA(name, parameters) fill_one((void **)&cuda.name, base, dynamic, #name);
#define NVML(name, parameters)
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
}

static void fill_nvml(ElfW(Addr) base, const ElfW(Dyn) *dynamic)
{
#define CUDA(name, parameters)
#define NVML(name, parameters) fill_one((void **)&nvml.name, base, dynamic, #name);
#include "hooks.def"
#include "calls.def"
#undef CUDA
#undef NVML
}

/* Fills the functions here, under the loader's lock: the object cannot be unloaded meanwhile. */
static int visit(struct dl_phdr_info *object, size_t bytes, void *data)
{
    struct wanted *wanted = data;
    const ElfW(Dyn) *dynamic = NULL;
    uint32_t expected = NOT_FOUND;

    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    const char *soname = dynamic ? elf_soname(object->dlpi_addr, dynamic) : NULL;
    if (!soname || !text_equal(soname, wanted->soname))
        return 0;
    size_t length = 0;
    for (const char *c = object->dlpi_name; *c && length + 1 < sizeof(wanted->path); c++)
        wanted->path[length++] = *c;
    wanted->path[length] = '\0';
    if (__atomic_compare_exchange_n(wanted->search, &expected, FILLING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        wanted->fill(object->dlpi_addr, dynamic);
        __atomic_store_n(wanted->search, FOUND, __ATOMIC_RELEASE);
    }
    return 1;
}

static void *open_library(const char *name, int flags)
{
    /* In libc since glibc 2.34, before that in libdl, which libcuda brings. */
    void *(*open)(const char *, int) = (void *(*)(const char *, int))elf_next_symbol("dlopen");
    return open ? open(name, flags) : NULL;
}

static bool find(const char *soname, uint32_t *search, void (*fill)(ElfW(Addr), const ElfW(Dyn) *))
{
    struct wanted wanted = {.soname = soname, .search = search, .fill = fill};
    if (state_of(search) == FOUND)
        return true;
    if (!dl_iterate_phdr(visit, &wanted))
        return false;
    while (state_of(search) == FILLING)
        clock_sleep(1000);
    open_library(wanted.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    return true;
}

bool driver_find_cuda(void)
{
    return find("libcuda.so.1", &cuda_search, fill_cuda);
}

bool driver_find_nvml(void)
{
    return find("libnvidia-ml.so.1", &nvml_search, fill_nvml);
}

bool driver_load_nvml(void)
{
    return driver_find_nvml() || (open_library("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) && driver_find_nvml());
}

bool driver_begin_nvml(void)
{
    static bool begun;
    if (!__atomic_load_n(&begun, __ATOMIC_ACQUIRE) && driver_load_nvml() && nvml.nvmlInit_v2() == NVML_SUCCESS)
        __atomic_store_n(&begun, true, __ATOMIC_RELEASE);
    return __atomic_load_n(&begun, __ATOMIC_ACQUIRE);
}
