#include "mappings.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

static bool before(const struct mapping *mapping, uint64_t space, uint64_t start)
{
    return mapping->space != space ? mapping->space < space : mapping->start < start;
}

/* Index of the first that does not lie before. */
static size_t position(const struct mappings *mappings, uint64_t space, uint64_t start)
{
    size_t low = 0, high = mappings->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(&mappings->sorted[middle], space, start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool make_room(struct mappings *mappings)
{
    if (mappings->count < mappings->room)
        return true;
    size_t room = mappings->room ? mappings->room * 2 : FIRST_ROOM;
    struct mapping *sorted = realloc(mappings->sorted, room * sizeof(*sorted));
    if (!sorted)
        return false;
    mappings->sorted = sorted;
    mappings->room = room;
    return true;
}

bool mappings_add(struct mappings *mappings, struct mapping mapping)
{
    lock_take(&mappings->lock);
    bool room = make_room(mappings);
    if (room) {
        size_t at = position(mappings, mapping.space, mapping.start);
        memmove(&mappings->sorted[at + 1], &mappings->sorted[at], (mappings->count - at) * sizeof(mapping));
        mappings->sorted[at] = mapping;
        mappings->count++;
    }
    lock_drop(&mappings->lock);
    return room;
}

bool mappings_take(struct mappings *mappings, uint64_t space, uint64_t start, uint64_t length, struct mapping *taken)
{
    lock_take(&mappings->lock);
    size_t at = position(mappings, space, start);
    const struct mapping *first = at < mappings->count ? &mappings->sorted[at] : NULL;
    bool found = first && first->space == space && first->start - start < length;
    if (found) {
        *taken = *first;
        mappings->count--;
        memmove(&mappings->sorted[at], &mappings->sorted[at + 1], (mappings->count - at) * sizeof(*taken));
    }
    lock_drop(&mappings->lock);
    return found;
}

uint64_t mappings_handle_at(struct mappings *mappings, uint64_t address)
{
    uint64_t handle = 0;
    lock_take(&mappings->lock);
    size_t after = position(mappings, 0, address + 1);
    if (after > 0) {
        const struct mapping *mapping = &mappings->sorted[after - 1];
        if (mapping->space == 0 && address - mapping->start < mapping->length)
            handle = mapping->handle;
    }
    lock_drop(&mappings->lock);
    return handle;
}
