#include "trim.h"

static uint64_t square_root(uint64_t square)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= square)
            root |= bit;
    return root;
}

uint64_t trim_factor(uint64_t factor, unsigned busy, unsigned percent)
{
    uint64_t step = square_root(((uint64_t)busy << 32) / percent);
    uint64_t next = (factor ? factor : FACTOR_ONE) * step / FACTOR_ONE;
    return next < FACTOR_LEAST ? FACTOR_LEAST : next > FACTOR_MOST ? FACTOR_MOST : next;
}
