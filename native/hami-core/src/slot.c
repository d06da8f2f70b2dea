#define _GNU_SOURCE
#include "slot.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "ledger.h"
#include "record_lock.h"

enum { HAMI_RUNNING = 1 };

static uint32_t state_of(const struct extension_slot *slot)
{
    return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
}

static bool same_process(const struct extension_slot *slot, const struct identity *self)
{
    return slot->pid == self->pid && slot->start_time == self->start_time && slot->pid_namespace == self->pid_namespace;
}

bool slot_is_of(const struct extension_slot *slot, const struct identity *self)
{
    return same_process(slot, self) && slot->image == self->image;
}

/* For a slot whose byte this process has just locked. */
static bool lost_its_lock(const struct region *region, const struct extension_slot *slot, const struct identity *self)
{
    if (same_process(slot, self))
        return false; /* left from before exec */
    return self->pid_namespace != 0 && slot->pid_namespace == self->pid_namespace &&
           process_maps_file(slot->pid, slot->start_time, (struct mapped_file){region->device, region->inode, region->path});
}

/* For the holder of the slot's byte. Killed anywhere, the next holder does it again. */
static void clear(struct region_file *file, unsigned number)
{
    struct extension_slot *slot = &file->extension.slots[number];
    struct hami_slot *hami = &file->hami.procs[number];

    for (unsigned device = 0; device < REGION_DEVICES; device++)
        ledger_recover(&file->extension, number, device);
    memset(hami, 0, sizeof(*hami));
    slot->pid = 0;
    slot->host = 0;
    slot->flags = 0;
    slot->throttled = 0;
    memset(slot->name, 0, sizeof(slot->name));
    __atomic_store_n(&slot->state, SLOT_FREE, __ATOMIC_RELEASE);
}

static void write_identity(struct region_file *file, unsigned number, const struct identity *self)
{
    struct extension_slot *slot = &file->extension.slots[number];
    struct hami_slot *hami = &file->hami.procs[number];
    int32_t used = __atomic_load_n(&file->hami.proc_num, __ATOMIC_ACQUIRE);

    slot->pid = self->pid;
    slot->start_time = self->start_time;
    slot->pid_namespace = self->pid_namespace;
    slot->image = self->image;
    slot->attached = clock_unix_seconds();
    memcpy(slot->name, self->name, sizeof(slot->name));
    __atomic_store_n(&slot->state, SLOT_USED, __ATOMIC_RELEASE);
    hami->pid = (int32_t)self->pid;
    __atomic_store_n(&hami->status, HAMI_RUNNING, __ATOMIC_RELEASE);
    while (used <= (int32_t)number && !__atomic_compare_exchange_n(&file->hami.proc_num, &used, (int32_t)number + 1, false,
                                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

/* Locks the byte of a slot that nobody living has. */
static bool seize(struct region *region, unsigned number, const struct identity *self)
{
    const struct extension_slot *slot = &region->file->extension.slots[number];
    bool used = state_of(slot) == SLOT_USED;

    /* Another copy of the library in this process may have it (dlmopen). Its lock looks free to us and must not be touched. */
    if ((used && slot_is_of(slot, self)) || !record_lock_try(region->lock_file, F_WRLCK, number, 1))
        return false;
    if (state_of(slot) == SLOT_USED && lost_its_lock(region, slot, self)) {
        record_lock_drop(region->lock_file, number, 1);
        return false;
    }
    return true;
}

unsigned slot_take(struct region *region, const struct identity *self, char *reason)
{
    unsigned number = 0;

    slot_reap(region, self);
    if (!region_gate(region, false, reason))
        return SLOT_NONE;
    while (number < REGION_SLOTS && !seize(region, number, self))
        number++;
    if (number < REGION_SLOTS) {
        clear(region->file, number);
        write_identity(region->file, number, self);
    } else {
        snprintf(reason, REASON_BYTES, "%.128s: all %d slots are in use", region->path, REGION_SLOTS);
    }
    region_gate_drop(region);
    return number;
}

void slot_drop(struct region *region, unsigned slot)
{
    clear(region->file, slot);
    record_lock_drop(region->lock_file, slot, 1);
}

bool slot_reap(struct region *region, const struct identity *self)
{
    struct extension *extension = &region->file->extension;
    int32_t ever_used = __atomic_load_n(&region->file->hami.proc_num, __ATOMIC_ACQUIRE);
    bool reaped = false;

    for (unsigned number = 0; number < REGION_SLOTS && (int32_t)number < ever_used; number++) {
        if (state_of(&extension->slots[number]) != SLOT_USED || !seize(region, number, self))
            continue;
        slot_drop(region, number);
        reaped = true;
    }
    return reaped;
}

void slot_keep(struct region *region, unsigned slot, const struct identity *self)
{
    char reason[REASON_BYTES];
    if (region_keep_lock_file(region, reason) && slot_is_of(&region->file->extension.slots[slot], self))
        record_lock_try(region->lock_file, F_WRLCK, slot, 1);
}
