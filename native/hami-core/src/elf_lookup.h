/* Symbols of loaded objects, read from their own tables. No call into libc: the first use may come before libc or a sanitizer
 * is ready. */
#ifndef ELF_LOOKUP_H
#define ELF_LOOKUP_H

#include <elf.h>
#include <link.h>
#include <stdbool.h>

bool text_equal(const char *a, const char *b);

/* Address of a defined symbol of the object, NULL if it has none of that name. */
void *elf_symbol(ElfW(Addr) base, const ElfW(Dyn) *dynamic, const char *name);

/* DT_SONAME, NULL if the object has none. */
const char *elf_soname(ElfW(Addr) base, const ElfW(Dyn) *dynamic);

/* The first definition of `name` in the objects that the program started with, behind this library: what the program would get
 * if this library were not there. NULL if there is none. */
void *elf_next_symbol(const char *name);

/* What this library exports by that name, NULL if it exports none. */
void *elf_own_symbol(const char *name);

/* Whether an address is of this library. */
bool elf_is_own(const void *address);

/* This library's own dynamic section. */
const ElfW(Dyn) *elf_self(void);

#endif
