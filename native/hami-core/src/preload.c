#include "preload.h"

#include <stdbool.h>

#include "elf_lookup.h"
#include "message.h"

/* glibc's loader reads /etc/ld.so.preload, musl's does not. The symbol is one that glibc's loader has always exported; what musl
 * systems have to run programs of glibc lacks it. */
static bool reads_preload_file(void)
{
    return elf_next_symbol("__libc_stack_end") != NULL;
}

void preload_say_gap(const char *library)
{
    if (!reads_preload_file())
        message(MESSAGE_WARNING,
                "the C library of this program reads no /etc/ld.so.preload: programs of this container that are started without "
                "LD_PRELOAD=%.256s, with a cleared environment or setuid, are not held to its GPU memory limit",
                library);
}
