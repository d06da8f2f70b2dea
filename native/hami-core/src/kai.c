#include "kai.h"

typedef unsigned __int128 wide;

enum { MAX_PLACES = 18, LABEL_GRANULE_MIB = 100 };

static uint64_t power_of_ten(unsigned places)
{
    uint64_t power = 1;
    while (places-- > 0)
        power *= 10;
    return power;
}

bool fraction_parse(struct span text, struct fraction *fraction)
{
    uint64_t digits = 0;
    unsigned places = 0;
    bool point = false, any = false;

    for (size_t i = 0; i < text.length; i++) {
        char c = text.start[i];
        if (c == '.' && !point) {
            point = true;
            continue;
        }
        if (c < '0' || c > '9')
            return false;
        any = true;
        if (places == MAX_PLACES)
            continue;
        if (digits > (UINT64_MAX - 9) / 10)
            return false;
        digits = digits * 10 + (uint64_t)(c - '0');
        places += point;
    }
    while (places > 0 && digits % 10 == 0) {
        digits /= 10;
        places--;
    }
    *fraction = (struct fraction){digits, places};
    return any && digits > 0 && digits <= power_of_ten(places);
}

/* Bit by bit, since a compiler's own division of this width lives in a library of its own. */
static wide divide(wide dividend, uint64_t divisor, uint64_t *remainder)
{
    wide quotient = 0, rest = 0;
    for (unsigned bit = 128; bit-- > 0;) {
        rest = rest << 1 | (dividend >> bit & 1);
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1;
        }
    }
    *remainder = (uint64_t)rest;
    return quotient;
}

uint64_t fraction_of(struct fraction fraction, uint64_t bytes)
{
    uint64_t remainder, product = (uint64_t)divide((wide)fraction.digits * bytes, power_of_ten(fraction.places), &remainder);
    return product > 0 ? product : 1;
}

/* The float64 nearest to digits / 10^places is mantissa / 2^shift. */
struct binary {
    uint64_t mantissa;
    unsigned shift;
};

static struct binary nearest_float64(struct fraction fraction)
{
    uint64_t divisor = power_of_ten(fraction.places);
    unsigned shift = 64;
    uint64_t remainder;
    wide quotient = divide((wide)fraction.digits << shift, divisor, &remainder);
    bool inexact = remainder != 0;
    /* Keep 53 bits, and in the bits below them whether anything was lost. */
    unsigned drop = 0;
    while (quotient >> (53 + drop))
        drop++;
    if (drop > 0) {
        wide lost = quotient & (((wide)1 << drop) - 1), half = (wide)1 << (drop - 1);
        quotient >>= drop;
        shift -= drop;
        if (lost > half || (lost == half && (inexact || (quotient & 1))))
            quotient++;
    }
    return (struct binary){(uint64_t)quotient, shift};
}

unsigned kai_portion_of_fraction(struct fraction fraction)
{
    struct binary binary = nearest_float64(fraction);
    wide hundredfold = (wide)binary.mantissa * 100;
    wide whole = hundredfold >> binary.shift, rest = hundredfold - (whole << binary.shift);
    wide half = (wide)1 << (binary.shift - 1);
    if (rest > half || (rest == half && (whole & 1)))
        whole++;
    return (unsigned)whole;
}

/* Without ceil(), which may need libm. */
static uint64_t ceiling(double value)
{
    uint64_t whole = (uint64_t)value;
    return (double)whole < value ? whole + 1 : whole;
}

unsigned kai_portion_of_memory(uint64_t request_mib, uint64_t label_mib)
{
    uint64_t floored = label_mib - label_mib % LABEL_GRANULE_MIB;
    if (request_mib >= floored)
        return KAI_WHOLE_PORTION;
    return (unsigned)ceiling((double)request_mib / (double)floored * 100);
}

uint64_t kai_limit_mib(unsigned portion, uint64_t label_mib)
{
    return (uint64_t)((double)label_mib * ((double)portion / 100.0));
}
