#include "ledger.h"

#include "atomic16.h"
#include "slow.h"

enum { TAG_SLOT_SHIFT = 48 };
#define TAG_SEQUENCE_MASK ((UINT64_C(1) << TAG_SLOT_SHIFT) - 1)

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static uint64_t make_tag(unsigned slot, uint64_t sequence)
{
    return (uint64_t)slot << TAG_SLOT_SHIFT | sequence;
}

/* Tells the owner of the step that `tag` names that it was seen: its tag is about to be replaced. */
static void help(struct extension *books, unsigned me, unsigned device, uint64_t tag)
{
    unsigned slot = (unsigned)(tag >> TAG_SLOT_SHIFT);
    uint64_t sequence = tag & TAG_SEQUENCE_MASK;
    if (slot == me || slot >= REGION_SLOTS)
        return;
    uint64_t *helped = &books->lanes[slot][device].helped;
    uint64_t seen = load(helped);
    while (seen < sequence &&
           !__atomic_compare_exchange_n(helped, &seen, sequence, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

static uint64_t value_after(uint64_t value, int64_t delta)
{
    if (delta >= 0)
        return value + (uint64_t)delta;
    uint64_t back = (uint64_t)-delta;
    return value > back ? value - back : 0;
}

static inline void settle(struct lane *lane, uint64_t sequence, int64_t delta)
{
    store(&lane->value[sequence & 1], value_after(load(&lane->value[(sequence - 1) & 1]), delta));
    store(&lane->settled, sequence);
}

/* A copy for taking and one for giving back, without the other's branches. */
static inline __attribute__((always_inline)) bool step(struct extension *books, unsigned slot, unsigned device, int64_t delta, uint64_t limit_bytes)
{
    struct lane *lane = &books->lanes[slot][device];
    struct tagged_total *where = &books->devices[device].books;
    uint64_t sequence = load(&lane->settled) + 1;
    struct tagged_total seen, wanted;

    __atomic_store_n(&lane->delta, delta, __ATOMIC_RELEASE);
    do {
        /* Two loads: a torn pair only makes the swap fail. */
        seen.total = load(&where->total);
        seen.tag = load(&where->tag);
        help(books, slot, device, seen.tag);
        if (delta > 0 && ((uint64_t)delta > limit_bytes || seen.total > limit_bytes - (uint64_t)delta))
            return false;
        wanted.total = value_after(seen.total, delta);
        wanted.tag = make_tag(slot, sequence);
    } while (!compare_and_swap16(where, seen, wanted));
    settle(lane, sequence, delta);
    return true;
}

HOT bool ledger_charge(struct extension *books, unsigned slot, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    if (bytes > INT64_MAX)
        return false;
    return step(books, slot, device, (int64_t)bytes, limit_bytes);
}

HOT void ledger_release(struct extension *books, unsigned slot, unsigned device, uint64_t bytes)
{
    if (bytes > 0 && bytes <= INT64_MAX)
        step(books, slot, device, -(int64_t)bytes, 0);
}

void ledger_recover(struct extension *books, unsigned slot, unsigned device)
{
    struct lane *lane = &books->lanes[slot][device];
    uint64_t sequence = load(&lane->settled) + 1;
    /* The tag before `helped`: whoever replaces the tag has raised `helped` before. */
    bool committed = load(&books->devices[device].books.tag) == make_tag(slot, sequence);
    if (committed || load(&lane->helped) >= sequence)
        settle(lane, sequence, __atomic_load_n(&lane->delta, __ATOMIC_ACQUIRE));
    ledger_release(books, slot, device, ledger_held(books, slot, device));
}

uint64_t ledger_total(const struct extension *books, unsigned device)
{
    return load(&books->devices[device].books.total);
}

uint64_t ledger_held(const struct extension *books, unsigned slot, unsigned device)
{
    const struct lane *lane = &books->lanes[slot][device];
    return load(&lane->value[load(&lane->settled) & 1]);
}

uint64_t ledger_steps(const struct extension *books, unsigned slot, unsigned device)
{
    return load(&books->lanes[slot][device].settled);
}
