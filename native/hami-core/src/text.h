/* Reading numbers from text without the locale. */
#ifndef TEXT_H
#define TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of a longer text, not NUL-terminated. */
struct span {
    const char *start;
    size_t length;
};

struct span span_of(const char *text);
bool span_is(struct span span, const char *text);
struct span span_trim(struct span span);

/* The part before the first `mark`; what follows it stays in *rest. The whole span and an empty rest where there is no mark. */
struct span span_cut(struct span *rest, char mark);

/* Decimal digits only, at least one, no overflow. */
bool span_unsigned(struct span span, uint64_t *value);

/* Copies into a NUL-terminated buffer. False: does not fit or contains NUL. */
bool span_copy(struct span span, char *buffer, size_t bytes);

#endif
