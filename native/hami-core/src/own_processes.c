#include "own_processes.h"

#include <unistd.h>

#include "devices.h"
#include "ledger.h"
#include "record_lock.h"
#include "slot.h"

/* A process is not told of its own locks. Another with its PID may have been there before a restart of the container, or before exec. */
static bool is_own(const struct extension_slot *slot)
{
    if (slot->pid != (uint32_t)getpid())
        return false;
    struct identity self = container.self.pid == slot->pid ? container.self : identity_of_self();
    return slot_is_of(slot, &self);
}

static bool is_held(const struct extension_slot *slot, unsigned number)
{
    int file = container.region.lock_file;
    return is_own(slot) || file < 0 || record_lock_holder(file, number, 1) >= 0;
}

unsigned own_processes(const struct sight *sight, unsigned device, struct own_process list[REGION_SLOTS], uint64_t *sum)
{
    unsigned found = 0;

    *sum = 0;
    for (unsigned number = 0; sight->file && device != DEVICE_NONE && number < REGION_SLOTS; number++) {
        const struct extension_slot *slot = &sight->file->extension.slots[number];
        uint64_t bytes = slot->state == SLOT_USED ? ledger_held(&sight->file->extension, number, device) : 0;
        if (bytes == 0 || !is_held(slot, number))
            continue;
        if (list)
            list[found] = (struct own_process){slot->pid, bytes};
        found++;
        *sum += bytes;
    }
    return found;
}
