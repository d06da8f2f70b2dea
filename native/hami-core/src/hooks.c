#define _GNU_SOURCE
#include "hooks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "elf_lookup.h"

/* Nothing in it is an address, which the loader would have to relocate in every program. */
struct hook {
    char name[48];
    uint16_t place; /* in struct cuda_functions or struct nvml_functions */
    bool in_nvml;
};

static const struct hook hooks[] = {
#define CUDA(name, parameters) {#name, offsetof(struct cuda_functions, name), false},
#define NVML(name, parameters) {#name, offsetof(struct nvml_functions, name), true},
#include "hooks.def"
#undef CUDA
#undef NVML
};

enum { HOOKS = sizeof(hooks) / sizeof(hooks[0]) };

const struct hook *hook_named(const char *name)
{
    if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v'))
        return NULL;
    for (size_t i = 0; i < HOOKS; i++)
        if (text_equal(hooks[i].name, name))
            return &hooks[i];
    return NULL;
}

void *hook_wrapper(const struct hook *hook)
{
    return elf_own_symbol(hook->name);
}

static void *const *driver_function(const struct hook *hook)
{
    const char *functions = hook->in_nvml ? (const char *)&nvml : (const char *)&cuda;
    return (void *const *)(functions + hook->place);
}

bool hook_in_driver(const struct hook *hook)
{
    return driver_has(driver_function(hook));
}

void *hook_translate(const struct hook *hook, void *address)
{
    return address && address == *driver_function(hook) ? hook_wrapper(hook) : address;
}

void *hook_translate_any(void *address)
{
    for (size_t i = 0; address && i < HOOKS; i++)
        if (*driver_function(&hooks[i]) == address)
            return hook_wrapper(&hooks[i]);
    return address;
}
