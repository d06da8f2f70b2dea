/* The exported dlmopen.
 *
 * What a program opens in a namespace of its own does not see what was preloaded. So this library is opened there first, which makes
 * it that namespace's global scope, and then the program's library in the same namespace. Where the real dlmopen looks for a file
 * depends on who calls, so the exported function jumps there, as dlsym does (dlsym.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>

#include "dlmopen.h"
#include "elf_lookup.h"
#include "hooks.h"
#include "limits.h"
#include "own_path.h"

typedef void *dlmopen_function(Lmid_t, const char *, int);

/* Two registers: jump to `target` with this namespace as the first argument, or return NULL if there is no target. */
struct mroute {
    void *target;
    Lmid_t namespace;
};

__attribute__((visibility("hidden"), used)) struct mroute dlmopen_route(Lmid_t namespace, const char *file, int mode);

/* A namespace that was made for a thread, and the copy of this library in it. Only that thread opens anything in it again: then its
 * call that asked for it is over. */
struct made {
    void *thread;
    const struct link_map *copy; /* set last */
    const struct link_map *last; /* of what came with the copy; what was opened in the namespace since is behind it */
    Lmid_t namespace;
};

enum { NAMESPACES = 16 }; /* glibc has no more */

static struct made made[NAMESPACES];

static void *this_thread(void)
{
    return &errno;
}

static const struct link_map *copy_of(const struct made *entry)
{
    return __atomic_load_n(&entry->copy, __ATOMIC_ACQUIRE);
}

/* A namespace in which only the copy is left, since opening the program's failed or it was closed: without us it would be gone. */
static const struct made *find_empty(void)
{
    for (unsigned i = 0; i < NAMESPACES; i++)
        if (copy_of(&made[i]) && made[i].thread == this_thread() && !made[i].last->l_next)
            return &made[i];
    return NULL;
}

static void remember(Lmid_t namespace, const struct link_map *copy)
{
    const struct link_map *last = copy;
    while (last->l_next)
        last = last->l_next;
    for (unsigned i = 0; i < NAMESPACES; i++) {
        void *nobody = NULL;
        if (__atomic_compare_exchange_n(&made[i].thread, &nobody, this_thread(), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            made[i].namespace = namespace;
            made[i].last = last;
            __atomic_store_n(&made[i].copy, copy, __ATOMIC_RELEASE);
            return;
        }
    }
}

void *dlmopen_dlsym_of(void *handle)
{
    int (*info)(void *, int, void *) = NULL;
    Lmid_t namespace;

    for (unsigned i = 0; i < NAMESPACES && copy_of(&made[i]); i++) {
        if (!info)
            info = (int (*)(void *, int, void *))elf_next_symbol("dlinfo");
        if (info && info(handle, RTLD_DI_LMID, &namespace) == 0 && namespace == made[i].namespace)
            return elf_symbol(made[i].copy->l_addr, made[i].copy->l_ld, "dlsym");
    }
    return NULL;
}

/* False: this library cannot be opened there, and the program gets what it would get without us. */
static bool make(dlmopen_function *open, Lmid_t *namespace)
{
    int (*info)(void *, int, void *) = (int (*)(void *, int, void *))elf_next_symbol("dlinfo");
    char *(*error)(void) = (char *(*)(void))elf_next_symbol("dlerror");
    char path[PATH_BYTES];
    void *handle = info && error && own_file(path, sizeof(path)) ? open(LM_ID_NEWLM, path, RTLD_NOW) : NULL;

    if (handle && info(handle, RTLD_DI_LMID, namespace) == 0) {
        remember(*namespace, handle);
        return true;
    }
    if (error)
        error();
    return false;
}

struct mroute dlmopen_route(Lmid_t namespace, const char *file, int mode)
{
    dlmopen_function *open = (dlmopen_function *)elf_next_symbol("dlmopen");
    int saved = errno;
    (void)mode;

    if (open && namespace == LM_ID_NEWLM && file) {
        const struct made *empty = find_empty();
        if (empty)
            namespace = empty->namespace;
        else if (!make(open, &namespace))
            namespace = LM_ID_NEWLM;
    }
    errno = saved;
    return (struct mroute){(void *)open, namespace};
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".balign 16\n"
        ".globl libvgpu_dlmopen\n"
        ".hidden libvgpu_dlmopen\n"
        ".globl libvgpu_dlmopen_old\n"
        ".globl libvgpu_dlmopen_new\n"
        ".type libvgpu_dlmopen, @function\n"
        ".type libvgpu_dlmopen_old, @function\n"
        ".type libvgpu_dlmopen_new, @function\n"
        "libvgpu_dlmopen:\n"
        "libvgpu_dlmopen_old:\n"
        "libvgpu_dlmopen_new:\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "pushq %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "pushq %rdx\n"
        ".cfi_adjust_cfa_offset 8\n"
        "subq $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call dlmopen_route\n"
        "movq %rdx, %rdi\n"
        "addq $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rdx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "popq %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "testq %rax, %rax\n"
        "jz 1f\n"
        "jmpq *%rax\n"
        "1: ret\n"
        ".cfi_endproc\n"
        ".size libvgpu_dlmopen_old, . - libvgpu_dlmopen_old\n"
        ".size libvgpu_dlmopen_new, . - libvgpu_dlmopen_new\n"
        ".symver libvgpu_dlmopen_old, dlmopen@GLIBC_2.3.4\n"
        ".symver libvgpu_dlmopen_new, dlmopen@@GLIBC_2.34\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".balign 16\n"
        ".globl libvgpu_dlmopen\n"
        ".hidden libvgpu_dlmopen\n"
        ".globl libvgpu_dlmopen_old\n"
        ".globl libvgpu_dlmopen_new\n"
        ".type libvgpu_dlmopen, %function\n"
        ".type libvgpu_dlmopen_old, %function\n"
        ".type libvgpu_dlmopen_new, %function\n"
        "libvgpu_dlmopen:\n"
        "libvgpu_dlmopen_old:\n"
        "libvgpu_dlmopen_new:\n"
        ".cfi_startproc\n"
        "hint #34\n"
        "stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset 29, -32\n"
        ".cfi_offset 30, -24\n"
        "mov x29, sp\n"
        "stp x1, x2, [sp, #16]\n"
        "bl dlmopen_route\n"
        "mov x16, x0\n"
        "mov x0, x1\n"
        "ldp x1, x2, [sp, #16]\n"
        "ldp x29, x30, [sp], #32\n"
        ".cfi_restore 30\n"
        ".cfi_restore 29\n"
        ".cfi_def_cfa_offset 0\n"
        "cbz x16, 1f\n"
        "br x16\n"
        "1: mov x0, xzr\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size libvgpu_dlmopen_old, . - libvgpu_dlmopen_old\n"
        ".size libvgpu_dlmopen_new, . - libvgpu_dlmopen_new\n"
        ".symver libvgpu_dlmopen_old, dlmopen@GLIBC_2.17\n"
        ".symver libvgpu_dlmopen_new, dlmopen@@GLIBC_2.34\n");
#endif
