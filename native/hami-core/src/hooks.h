/* The table of wrapped functions, made from hooks.def. */
#ifndef HOOKS_H
#define HOOKS_H

#include <stdbool.h>

#include "driver_abi.h"

/* What the library says of these names is about its own functions, whoever else has some of that name. Linking with -Bsymbolic would do
 * that too, but then dlsym(RTLD_DEFAULT) asked from here would find them before the program's own. */
#define EXPORT __attribute__((visibility("protected")))

#define CUDA(name, parameters) EXPORT CUresult name parameters;
#define NVML(name, parameters) EXPORT nvmlReturn_t name parameters;
#include "hooks.def"
#undef CUDA
#undef NVML

/* The exported dlsym and dlmopen. */
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void *libvgpu_dlsym(void *handle, const char *name);
HIDDEN void *libvgpu_dlmopen(long namespace, const char *file, int mode);

struct hook;

/* NULL if no function of that name is wrapped. */
const struct hook *hook_named(const char *name);

void *hook_wrapper(const struct hook *hook);

/* Whether the driver that was found has this function. */
bool hook_in_driver(const struct hook *hook);

/* The wrapper if `address` is the driver's own function of this hook, else `address`. */
void *hook_translate(const struct hook *hook, void *address);

/* The same for an address whose name is not known. */
void *hook_translate_any(void *address);

#endif
