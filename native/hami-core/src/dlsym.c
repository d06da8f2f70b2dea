/* The exported dlsym.
 *
 * What RTLD_DEFAULT and RTLD_NEXT mean depends on who calls, and the real dlsym tells that by its return address. So the exported
 * function is assembly: it asks dlsym_route where to go and jumps there with the caller's frame untouched. The file is compiled
 * without any instrumentation and calls nothing in libc but getauxval on the way to the real dlsym, since a sanitizer's runtime
 * calls dlsym before it is ready itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

#include "dlmopen.h"
#include "driver.h"
#include "elf_lookup.h"
#include "hooks.h"

typedef void *dlsym_function(void *handle, const char *name);

/* Two registers: jump to `target` if it is set, else return `result`. */
struct route {
    void *target;
    void *result;
};

__attribute__((visibility("hidden"), used)) struct route dlsym_route(void *handle, const char *name);

static void *real_dlsym(void)
{
    static void *found;
    void *address = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
    if (!address) {
        address = elf_next_symbol("dlsym");
        __atomic_store_n(&found, address, __ATOMIC_RELEASE);
    }
    return address;
}

static bool find_driver_of(const char *name)
{
    return name[0] == 'c' ? driver_find_cuda() : driver_find_nvml();
}

/* Our exports make the names visible where there is no driver. What comes behind us in the global scope is what the caller would
 * have found without us. */
static void *without_us(dlsym_function *ask, const struct hook *hook, const char *name)
{
    void *behind_us = ask(RTLD_NEXT, name);
    if (find_driver_of(name) && !behind_us && hook_in_driver(hook))
        return hook_wrapper(hook);
    return hook_translate(hook, behind_us);
}

/* The functions that are ours in the place of libc's. */
static void *own_function(const char *name)
{
    if (text_equal(name, "dlsym"))
        return (void *)libvgpu_dlsym;
    return text_equal(name, "dlmopen") ? (void *)libvgpu_dlmopen : NULL;
}

static struct route route_own(dlsym_function *ask, void *handle, const char *name, void *own)
{
    void *address = ask(handle, name);
    if (address == own)
        return (struct route){NULL, ask(RTLD_NEXT, name) ? own : NULL};
    return (struct route){NULL, address && address == elf_next_symbol(name) ? own : address};
}

struct route dlsym_route(void *handle, const char *name)
{
    void *real = real_dlsym();
    dlsym_function *ask = (dlsym_function *)real;
    const struct hook *hook = name ? hook_named(name) : NULL;
    void *own = name ? own_function(name) : NULL;

    if (!real || handle == RTLD_NEXT || (!hook && !own))
        return (struct route){real, NULL};
    if (own)
        return route_own(ask, handle, name, own);
    void *address = ask(handle, name);
    if (address == hook_wrapper(hook))
        return (struct route){NULL, without_us(ask, hook, name)};
    if (handle == RTLD_DEFAULT)
        return (struct route){real, NULL};
    if (!address)
        return (struct route){NULL, NULL};
    void *elsewhere = dlmopen_dlsym_of(handle);
    if (elsewhere)
        return (struct route){elsewhere, NULL};
    find_driver_of(name);
    return (struct route){NULL, hook_translate(hook, address)};
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".balign 16\n"
        ".globl libvgpu_dlsym\n"
        ".hidden libvgpu_dlsym\n"
        ".globl libvgpu_dlsym_old\n"
        ".globl libvgpu_dlsym_new\n"
        ".type libvgpu_dlsym, @function\n"
        ".type libvgpu_dlsym_old, @function\n"
        ".type libvgpu_dlsym_new, @function\n"
        "libvgpu_dlsym:\n"
        "libvgpu_dlsym_old:\n"
        "libvgpu_dlsym_new:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call dlsym_route\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "testq %rax, %rax\n"
        "jz 1f\n"
        "jmpq *%rax\n"
        "1: movq %rdx, %rax\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size libvgpu_dlsym_old, . - libvgpu_dlsym_old\n"
        ".size libvgpu_dlsym_new, . - libvgpu_dlsym_new\n"
        ".symver libvgpu_dlsym_old, dlsym@GLIBC_2.2.5\n"
        ".symver libvgpu_dlsym_new, dlsym@@GLIBC_2.34\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".balign 16\n"
        ".globl libvgpu_dlsym\n"
        ".hidden libvgpu_dlsym\n"
        ".globl libvgpu_dlsym_old\n"
        ".globl libvgpu_dlsym_new\n"
        ".type libvgpu_dlsym, %function\n"
        ".type libvgpu_dlsym_old, %function\n"
        ".type libvgpu_dlsym_new, %function\n"
        "libvgpu_dlsym:\n"
        "libvgpu_dlsym_old:\n"
        "libvgpu_dlsym_new:\n"
        ".cfi_startproc\n"
        "hint #34\n"
        "stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset 29, -32\n"
        ".cfi_offset 30, -24\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n"
        "bl dlsym_route\n"
        "mov x16, x0\n"
        "mov x17, x1\n"
        "ldp x0, x1, [sp, #16]\n"
        "ldp x29, x30, [sp], #32\n"
        ".cfi_restore 30\n"
        ".cfi_restore 29\n"
        ".cfi_def_cfa_offset 0\n"
        "cbz x16, 1f\n"
        "br x16\n"
        "1: mov x0, x17\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size libvgpu_dlsym_old, . - libvgpu_dlsym_old\n"
        ".size libvgpu_dlsym_new, . - libvgpu_dlsym_new\n"
        ".symver libvgpu_dlsym_old, dlsym@GLIBC_2.17\n"
        ".symver libvgpu_dlsym_new, dlsym@@GLIBC_2.34\n");
#endif
