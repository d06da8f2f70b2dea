#include "address.h"

#include "driver.h"
#include "managed.h"

bool address_find(uintptr_t address, struct address *found) {
    *found = (struct address){.arena = NULL};
    found->arena = arena_find(address, &found->start, &found->bytes, &found->context);
    if (found->arena != NULL) {
        found->device = found->arena->device;
        return true;
    }
    found->range = range_at(address);
    if (found->range == NULL) {
        return false;
    }
    found->start = found->range->start;
    found->bytes = found->range->bytes;
    found->device = found->range->device;
    found->context = found->range->context;
    return true;
}

CUresult memory_at(CUdeviceptr address, size_t bytes, bool write, void **host) {
    *host = (void *)(uintptr_t)address;
    uintptr_t at = (uintptr_t)address, end = at + bytes;
    do { /* neighbouring pieces of a reservation are one memory */
        struct address found;
        if (!address_find(at, &found)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (found.range != NULL && (!found.range->reachable || (write && !found.range->writable))) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (write && found.arena != NULL) {
            arena_touch(found.arena, at);
        }
        if (write && found.range != NULL && found.range->kind == RANGE_MANAGED) {
            managed_move_in(found.range);
        }
        at = found.start + found.bytes;
        if (at < end && (found.range == NULL || found.range->kind != RANGE_VIRTUAL)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    } while (at < end);
    return CUDA_SUCCESS;
}
