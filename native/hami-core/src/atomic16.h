/* Compare and swap of 16 aligned bytes. Inline assembly, since compilers call libatomic for it. */
#ifndef ATOMIC16_H
#define ATOMIC16_H

#include <stdbool.h>

#include "region_layout.h"

static inline bool compare_and_swap16(struct tagged_total *where, struct tagged_total seen, struct tagged_total wanted)
{
#if defined(__x86_64__)
    bool swapped;
    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(swapped), "+m"(*where), "+a"(seen.total), "+d"(seen.tag)
                     : "b"(wanted.total), "c"(wanted.tag)
                     : "memory");
    return swapped;
#elif defined(__aarch64__)
    uint64_t total, tag;
    uint32_t failed;
    __asm__ volatile("1: ldaxp %[total], %[tag], %[where]\n"
                     "   cmp %[total], %[seen_total]\n"
                     "   ccmp %[tag], %[seen_tag], #0, eq\n"
                     "   mov %w[failed], #1\n"
                     "   b.ne 2f\n"
                     "   stlxp %w[failed], %[new_total], %[new_tag], %[where]\n"
                     "   cbnz %w[failed], 1b\n"
                     "2: clrex\n"
                     : [total] "=&r"(total), [tag] "=&r"(tag), [failed] "=&r"(failed), [where] "+Q"(*where)
                     : [seen_total] "r"(seen.total), [seen_tag] "r"(seen.tag), [new_total] "r"(wanted.total),
                       [new_tag] "r"(wanted.tag)
                     : "cc", "memory");
    return !failed;
#else
#error "only x86-64 and aarch64"
#endif
}

#endif
