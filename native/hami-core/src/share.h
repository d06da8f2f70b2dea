/* The figures that a container is shown, from its limit (LIMIT_NONE: the card's own), its use and the card's. All in bytes. */
#ifndef SHARE_H
#define SHARE_H

#include <stdint.h>

#include "limits.h"

/* Never above the card. */
static inline uint64_t share_total(uint64_t limit, uint64_t card_total)
{
    return limit < card_total ? limit : card_total;
}

/* Never below zero, where a limit was lowered below what is used, and never above what the card has free. */
static inline uint64_t share_free(uint64_t limit, uint64_t used, uint64_t card_free)
{
    uint64_t left = limit > used ? limit - used : 0;
    return left < card_free ? left : card_free;
}

#endif
