#define _GNU_SOURCE
#include "hooks.h"

#include <stddef.h>

#include "driver.h"
#include "elf_lookup.h"

struct hook {
    const char *name;
    void *wrapper;
    void *const *driver;
};

static const struct hook hooks[] = {
#define CUDA(name, parameters) {#name, (void *)name, (void *const *)&cuda.name},
#define NVML(name, parameters) {#name, (void *)name, (void *const *)&nvml.name},
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
    return hook->wrapper;
}

bool hook_in_driver(const struct hook *hook)
{
    return driver_has(hook->driver);
}

void *hook_translate(const struct hook *hook, void *address)
{
    return address && address == *hook->driver ? hook->wrapper : address;
}

void *hook_translate_any(void *address)
{
    for (size_t i = 0; address && i < HOOKS; i++)
        if (*hooks[i].driver == address)
            return hooks[i].wrapper;
    return address;
}
