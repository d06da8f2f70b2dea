#include "arena.h"

#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { UNIT = ARENA_UNIT, LARGEST_SMALL = 1 << 20, SMALLEST = 512, NONE = 0 };

enum unit_kind { UNIT_FREE, UNIT_FIRST, UNIT_BODY, UNIT_SMALL };

/* The blocks of one size class in one unit. */
struct small_blocks {
    uint16_t first_free; /* 1 + index of a freed block; 0 = none */
    uint16_t fresh;      /* blocks from here on were never used */
    uint16_t live;
    uint16_t next_free[UNIT / SMALLEST];
    uint32_t requested[UNIT / SMALLEST]; /* 0 = free */
};

/* Unit 0 is never handed out, so that 0 can mean none. Free runs are a doubly linked list of their first units. */
struct unit {
    uint8_t kind, size_class;
    bool written;
    uint32_t length;         /* of the run: at its first unit, and at its last one too when free */
    uint32_t next, previous; /* free runs; or units with room of one context and class */
    uint64_t requested;
    struct CUctx_st *context;
    struct small_blocks *small;
};

static struct arena *all;

static void *reserve_pages(size_t bytes) {
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    madvise(pages, bytes, MADV_DONTDUMP);
    return pages;
}

static void link_free(struct arena *arena, uint32_t first, uint32_t length) {
    struct unit *unit = arena->unit;
    unit[first] = (struct unit){.kind = UNIT_FREE, .length = length, .next = arena->free_head};
    unit[first + length - 1].kind = UNIT_FREE;
    unit[first + length - 1].length = length;
    if (arena->free_head != NONE) {
        unit[arena->free_head].previous = first;
    }
    arena->free_head = first;
}

static void unlink_free(struct arena *arena, uint32_t first) {
    struct unit *run = &arena->unit[first];
    if (run->previous != NONE) {
        arena->unit[run->previous].next = run->next;
    } else {
        arena->free_head = run->next;
    }
    if (run->next != NONE) {
        arena->unit[run->next].previous = run->previous;
    }
}

bool arena_open(struct arena *arena, uint64_t bytes) {
    if (arena->base != 0) {
        return true;
    }
    uint32_t units = (uint32_t)(bytes / UNIT) + 2;
    uint8_t *pages = reserve_pages((size_t)(units + 1) * UNIT);
    struct unit *table = reserve_pages((units + 1) * sizeof(struct unit));
    if (pages == NULL || table == NULL) {
        return false;
    }
    arena->base = ((uintptr_t)pages + UNIT - 1) / UNIT * UNIT;
    arena->unit = table;
    arena->units = units;
    arena->next = all;
    all = arena;
    table[0].kind = UNIT_BODY;
    table[units].kind = UNIT_BODY;
    link_free(arena, 1, units - 1);
    return true;
}

static uintptr_t unit_address(const struct arena *arena, uint32_t index) {
    return arena->base + (uintptr_t)index * UNIT;
}

static uint32_t take_units(struct arena *arena, uint32_t count) {
    uint32_t first = arena->free_head;
    while (first != NONE && arena->unit[first].length < count) {
        first = arena->unit[first].next;
    }
    if (first == NONE || !arena->take(arena, (uint64_t)count * UNIT)) {
        return NONE;
    }
    uint32_t length = arena->unit[first].length;
    unlink_free(arena, first);
    if (length > count) {
        link_free(arena, first + count, length - count);
    }
    arena->unit[first] = (struct unit){.kind = UNIT_FIRST, .length = count};
    for (uint32_t i = 1; i < count; i++) {
        arena->unit[first + i] = (struct unit){.kind = UNIT_BODY, .length = i};
    }
    if (first + count > arena->highest_used) {
        arena->highest_used = first + count;
    }
    return first;
}

static void give_units(struct arena *arena, uint32_t first) {
    struct unit *unit = arena->unit;
    uint32_t length = unit[first].length;
    if (unit[first].written) {
        madvise((void *)unit_address(arena, first), (size_t)length * UNIT, MADV_DONTNEED);
    }
    arena->give(arena, (uint64_t)length * UNIT);
    unit[first].kind = UNIT_FREE; /* it may end up inside a longer free run */
    uint32_t after = first + length;
    if (after < arena->units && unit[after].kind == UNIT_FREE) {
        unlink_free(arena, after);
        length += unit[after].length;
    }
    if (unit[first - 1].kind == UNIT_FREE) {
        uint32_t before = unit[first - 1].length;
        unlink_free(arena, first - before);
        first -= before;
        length += before;
    }
    link_free(arena, first, length);
}

static unsigned class_of(size_t bytes) {
    unsigned class = 0;
    while (((size_t)SMALLEST << class) < bytes) {
        class ++;
    }
    return class;
}

static uint32_t blocks_in(unsigned class) { return UNIT / SMALLEST >> class; }

static uint32_t *room_list(struct arena *arena, struct CUctx_st *context, unsigned class) {
    return context != NULL ? &context->with_room[class] : &arena->with_room[class];
}

static void add_room(struct arena *arena, uint32_t index) {
    struct unit *unit = &arena->unit[index];
    uint32_t *head = room_list(arena, unit->context, unit->size_class);
    unit->previous = NONE;
    unit->next = *head;
    if (*head != NONE) {
        arena->unit[*head].previous = index;
    }
    *head = index;
}

static void remove_room(struct arena *arena, uint32_t index) {
    struct unit *unit = &arena->unit[index];
    if (unit->previous != NONE) {
        arena->unit[unit->previous].next = unit->next;
    } else {
        *room_list(arena, unit->context, unit->size_class) = unit->next;
    }
    if (unit->next != NONE) {
        arena->unit[unit->next].previous = unit->previous;
    }
}

static uintptr_t take_small(struct arena *arena, struct CUctx_st *context, size_t bytes) {
    unsigned class = class_of(bytes);
    uint32_t index = *room_list(arena, context, class);
    if (index == NONE) {
        struct small_blocks *small = malloc(sizeof *small);
        if (small == NULL || (index = take_units(arena, 1)) == NONE) {
            free(small);
            return 0;
        }
        small->first_free = small->fresh = small->live = 0;
        arena->unit[index].kind = UNIT_SMALL;
        arena->unit[index].size_class = (uint8_t)class;
        arena->unit[index].context = context;
        arena->unit[index].small = small;
        add_room(arena, index);
    }
    struct small_blocks *small = arena->unit[index].small;
    uint32_t block = small->fresh;
    if (small->first_free != 0) {
        block = small->first_free - 1u;
        small->first_free = small->next_free[block];
    } else {
        small->fresh++;
    }
    small->requested[block] = (uint32_t)bytes;
    if (++small->live == blocks_in(class)) {
        remove_room(arena, index);
    }
    return unit_address(arena, index) + (uintptr_t)block * SMALLEST * (1u << class);
}

static void give_small(struct arena *arena, uint32_t index, uint32_t block) {
    struct unit *unit = &arena->unit[index];
    struct small_blocks *small = unit->small;
    small->requested[block] = 0;
    small->next_free[block] = small->first_free;
    small->first_free = (uint16_t)(block + 1);
    if (small->live-- == blocks_in(unit->size_class)) {
        add_room(arena, index);
    }
    if (small->live == 0) {
        remove_room(arena, index);
        free(small);
        give_units(arena, index);
    }
}

uintptr_t arena_take(struct arena *arena, struct CUctx_st *context, size_t bytes) {
    if (bytes <= LARGEST_SMALL) {
        return take_small(arena, context, bytes);
    }
    if (bytes > (uint64_t)arena->units * UNIT) {
        return 0;
    }
    uint32_t first = take_units(arena, (uint32_t)((bytes + UNIT - 1) / UNIT));
    if (first == NONE) {
        return 0;
    }
    arena->unit[first].requested = bytes;
    arena->unit[first].context = context;
    return unit_address(arena, first);
}

static bool locate(const struct arena *arena, uintptr_t address, uint32_t *unit, uint32_t *block) {
    if (arena->base == 0 || address < arena->base || address >= unit_address(arena, arena->units)) {
        return false;
    }
    uint32_t index = (uint32_t)((address - arena->base) / UNIT);
    if (index == 0) {
        return false;
    }
    if (arena->unit[index].kind == UNIT_BODY) {
        index -= arena->unit[index].length;
    }
    *unit = index;
    *block = 0;
    const struct unit *found = &arena->unit[index];
    if (found->kind == UNIT_FIRST) {
        return address - unit_address(arena, index) < found->requested;
    }
    if (found->kind != UNIT_SMALL) {
        return false;
    }
    uintptr_t offset = address - unit_address(arena, index);
    *block = (uint32_t)(offset / ((uintptr_t)SMALLEST << found->size_class));
    return *block < found->small->fresh &&
           offset - ((uintptr_t)*block * SMALLEST << found->size_class) < found->small->requested[*block];
}

static void describe(const struct arena *arena, uint32_t index, uint32_t block, uintptr_t *start, size_t *bytes) {
    const struct unit *unit = &arena->unit[index];
    bool small = unit->kind == UNIT_SMALL;
    *start = unit_address(arena, index) + ((uintptr_t)block * SMALLEST << unit->size_class);
    *bytes = small ? unit->small->requested[block] : unit->requested;
}

struct arena *arena_find(uintptr_t address, uintptr_t *start, size_t *bytes, struct CUctx_st **context) {
    for (struct arena *arena = all; arena != NULL; arena = arena->next) {
        uint32_t index, block;
        if (locate(arena, address, &index, &block)) {
            describe(arena, index, block, start, bytes);
            *context = arena->unit[index].context;
            return arena;
        }
    }
    return NULL;
}

bool arena_give(struct arena *arena, uintptr_t address) {
    uintptr_t start;
    size_t bytes;
    uint32_t index, block;
    if (!locate(arena, address, &index, &block)) {
        return false;
    }
    describe(arena, index, block, &start, &bytes);
    if (start != address) {
        return false;
    }
    if (arena->unit[index].kind == UNIT_SMALL) {
        give_small(arena, index, block);
    } else {
        give_units(arena, index);
    }
    return true;
}

void arena_give_context(struct arena *arena, struct CUctx_st *context) {
    for (uint32_t index = 1; index < arena->highest_used;) {
        struct unit *unit = &arena->unit[index];
        uint32_t length = unit->length;
        if (unit->kind != UNIT_FREE && unit->context == context) {
            if (unit->kind == UNIT_SMALL) {
                free(unit->small);
            }
            give_units(arena, index);
        }
        index += length;
    }
    for (unsigned class = 0; class < SMALL_CLASSES; class ++) {
        *room_list(arena, context, class) = NONE;
    }
}

void arena_close(struct arena *arena) {
    arena_give_context(arena, NULL);
    struct arena **link = &all;
    while (*link != arena) {
        link = &(*link)->next;
    }
    *link = arena->next;
    munmap((void *)arena->base, (size_t)arena->units * UNIT);
    munmap(arena->unit, (arena->units + 1) * sizeof(struct unit));
    arena->base = 0;
}

void arena_touch(struct arena *arena, uintptr_t address) {
    uint32_t index, block;
    if (locate(arena, address, &index, &block)) {
        arena->unit[index].written = true;
    }
}

void arena_units_of(struct arena *arena, uintptr_t address, uintptr_t *start, size_t *bytes) {
    uint32_t index, block;
    locate(arena, address, &index, &block);
    *start = unit_address(arena, index);
    *bytes = (size_t)arena->unit[index].length * UNIT;
}

bool arena_is_last_of_units(struct arena *arena, uintptr_t address) {
    uint32_t index, block;
    locate(arena, address, &index, &block);
    return arena->unit[index].kind == UNIT_FIRST || arena->unit[index].small->live == 1;
}
