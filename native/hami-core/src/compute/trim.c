#include "trim.h"

/* Less than that in a window of a second, NVML's whole percents say too little. */
static const uint64_t LEAST_NS = 25000000;

/* Nor do they tell such a difference. */
static const uint64_t ROUNDING_NS = 10000000;

static uint64_t square_root(uint64_t square)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= square)
            root |= bit;
    return root;
}

uint64_t trim_factor(uint64_t factor, uint64_t busy, int64_t paid)
{
    if (factor == 0)
        factor = FACTOR_ONE;
    uint64_t least_paid = paid < (int64_t)LEAST_NS ? LEAST_NS : (uint64_t)paid;
    uint64_t apart = least_paid > busy ? least_paid - busy : busy - least_paid;
    if (busy < LEAST_NS || apart < ROUNDING_NS)
        return factor;
    /* 2^16 times the root of a quotient is the root of 2^32 times the quotient; both fit, for windows of seconds. */
    uint64_t quotient = (busy << 24) / least_paid << 8;
    uint64_t step = square_root(quotient), next;
    step = step < FACTOR_ONE / 2 ? FACTOR_ONE / 2 : step > FACTOR_ONE * 2 ? FACTOR_ONE * 2 : step;
    next = factor * step / FACTOR_ONE;
    return next < FACTOR_LEAST ? FACTOR_LEAST : next > FACTOR_MOST ? FACTOR_MOST : next;
}

void paid_note(struct paid_history *history, uint64_t now, int64_t paid)
{
    if (history->count && now - history->moments[(history->count - 1) % PAID_MOMENTS].at < PAID_PAUSE)
        return;
    unsigned place = history->count++ % PAID_MOMENTS;
    history->moments[place].at = now;
    history->moments[place].paid = paid;
}

static bool paid_at(const struct paid_history *history, uint64_t time, int64_t *paid)
{
    unsigned kept = history->count < PAID_MOMENTS ? history->count : PAID_MOMENTS;
    for (unsigned i = 1; i < kept; i++) {
        unsigned later = (history->count - i) % PAID_MOMENTS, earlier = (history->count - i - 1) % PAID_MOMENTS;
        uint64_t from = history->moments[earlier].at, to = history->moments[later].at;
        if (time < from || time > to || from >= to)
            continue;
        int64_t step = history->moments[later].paid - history->moments[earlier].paid;
        *paid = history->moments[earlier].paid + (int64_t)((double)step * (double)(time - from) / (double)(to - from));
        return true;
    }
    return false;
}

bool paid_between(const struct paid_history *history, uint64_t from, uint64_t to, int64_t *paid)
{
    int64_t first, last;
    if (!paid_at(history, from, &first) || !paid_at(history, to, &last))
        return false;
    *paid = last - first;
    return true;
}
