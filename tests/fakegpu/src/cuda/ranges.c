#include "ranges.h"

#include <stdlib.h>
#include <string.h>

static struct range **sorted;
static size_t count, room;

/* How many ranges end at or before the address. */
static size_t place_of(uintptr_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle]->start + sorted[middle]->bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct range *range_add(struct range range) {
    if (count == room) {
        size_t more = room == 0 ? 64 : 2 * room;
        struct range **grown = realloc(sorted, more * sizeof(struct range *));
        if (grown == NULL) {
            return NULL;
        }
        sorted = grown;
        room = more;
    }
    struct range *added = malloc(sizeof *added);
    if (added == NULL) {
        return NULL;
    }
    *added = range;
    size_t place = place_of(range.start);
    memmove(&sorted[place + 1], &sorted[place], (count - place) * sizeof(struct range *));
    sorted[place] = added;
    count++;
    return added;
}

void range_remove(struct range *range) {
    size_t place = place_of(range->start);
    count--;
    memmove(&sorted[place], &sorted[place + 1], (count - place) * sizeof(struct range *));
    free(range);
}

struct range *range_from(uintptr_t address) {
    size_t place = place_of(address);
    return place < count ? sorted[place] : NULL;
}

struct range *range_at(uintptr_t address) {
    struct range *range = range_from(address);
    return range != NULL && range->start <= address ? range : NULL;
}

void ranges_end(struct CUctx_st *context, void (*free_range)(struct range *range)) {
    for (size_t i = count; i > 0; i--) {
        if (sorted[i - 1]->context == context) {
            free_range(sorted[i - 1]);
        }
    }
}
