#include "text.h"

#include <string.h>

struct span span_of(const char *text)
{
    return (struct span){text, strlen(text)};
}

bool span_is(struct span span, const char *text)
{
    return span.length == strlen(text) && memcmp(span.start, text, span.length) == 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

struct span span_trim(struct span span)
{
    while (span.length > 0 && is_space(span.start[0])) {
        span.start++;
        span.length--;
    }
    while (span.length > 0 && is_space(span.start[span.length - 1]))
        span.length--;
    return span;
}

struct span span_cut(struct span *rest, char mark)
{
    const char *end = rest->length ? memchr(rest->start, mark, rest->length) : NULL;
    struct span head = *rest;
    if (!end) {
        rest->start += rest->length;
        rest->length = 0;
        return head;
    }
    head.length = (size_t)(end - rest->start);
    rest->start += head.length + 1;
    rest->length -= head.length + 1;
    return head;
}

bool span_unsigned(struct span span, uint64_t *value)
{
    uint64_t sum = 0;
    if (span.length == 0)
        return false;
    for (size_t i = 0; i < span.length; i++) {
        char c = span.start[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(c - '0'), &sum))
            return false;
    }
    *value = sum;
    return true;
}

bool span_copy(struct span span, char *buffer, size_t bytes)
{
    if (span.length >= bytes || (span.length && memchr(span.start, '\0', span.length)))
        return false;
    memcpy(buffer, span.start, span.length);
    buffer[span.length] = '\0';
    return true;
}
