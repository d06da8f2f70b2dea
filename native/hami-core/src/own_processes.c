#include "own_processes.h"

#include <unistd.h>

#include "devices.h"
#include "ledger.h"
#include "record_lock.h"

static bool is_held(const struct extension_slot *slot, unsigned number)
{
    int file = container.region.lock_file;
    return slot->pid == (uint32_t)getpid() || file < 0 || record_lock_holder(file, number, 1) >= 0;
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
