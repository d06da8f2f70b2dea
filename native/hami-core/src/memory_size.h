/* The value of CUDA_DEVICE_MEMORY_LIMIT and its kin, as HAMi-core reads it. */
#ifndef MEMORY_SIZE_H
#define MEMORY_SIZE_H

#include "text.h"

enum size_reading {
    SIZE_NONE,    /* empty, or zero in any unit: no limit */
    SIZE_BYTES,   /* *bytes holds it */
    SIZE_INVALID, /* HAMi-core reads something from it, but not what was meant, or nothing */
};

#define SIZE_ACCEPTED "a whole number with at most one of the suffixes k, m, g (binary units, bytes without one), such as 4096m"

/* An unsigned number, decimal, 0x hexadecimal or 0 octal, and at most one suffix of g, m, k in either case. Space before either is
 * allowed. HAMi-core reads `2gb` as 2 bytes, `1.5g` as 1 GiB, `1e3m` as 1 MiB, `abc`, `-1` and what overflows as no limit: these
 * are invalid here. */
enum size_reading memory_size_parse(struct span text, uint64_t *bytes);

#endif
