#include "memory_size.h"

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool number_parse(struct span text, uint64_t *value)
{
    uint64_t base = 10, sum = 0;
    if (text.length > 2 && text.start[0] == '0' && (text.start[1] == 'x' || text.start[1] == 'X')) {
        base = 16;
        text.start += 2;
        text.length -= 2;
    } else if (text.length > 1 && text.start[0] == '0') {
        base = 8;
    }
    if (text.length == 0)
        return false;
    for (size_t i = 0; i < text.length; i++) {
        int digit = digit_of(text.start[i]);
        if (digit < 0 || (uint64_t)digit >= base || __builtin_mul_overflow(sum, base, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)digit, &sum))
            return false;
    }
    *value = sum;
    return true;
}

enum size_reading memory_size_parse(struct span text, uint64_t *bytes)
{
    uint64_t number, unit = 1;
    text = span_trim(text);
    if (text.length == 0)
        return SIZE_NONE;
    switch (text.start[text.length - 1]) {
    case 'g': case 'G': unit = UINT64_C(1) << 30; break;
    case 'm': case 'M': unit = UINT64_C(1) << 20; break;
    case 'k': case 'K': unit = UINT64_C(1) << 10; break;
    default: break;
    }
    if (unit != 1)
        text = span_trim((struct span){text.start, text.length - 1});
    if (!number_parse(text, &number) || __builtin_mul_overflow(number, unit, bytes))
        return SIZE_INVALID;
    return *bytes > 0 ? SIZE_BYTES : SIZE_NONE;
}
