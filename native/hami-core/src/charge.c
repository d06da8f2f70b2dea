#include "charge.h"

#include <errno.h>
#include <stdio.h>

#include "clock.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "ledger.h"
#include "message.h"
#include "slot.h"

enum { REAP_PAUSE = NANOSECONDS_A_SECOND / 10 };

static struct extension *books(void)
{
    return &container.region.file->extension;
}

/* What monitors read. Only this process writes it, under the lane's lock. */
static void publish(const struct charge *charge, int64_t delta)
{
    struct hami_used *used = &container.region.file->hami.procs[process->slot].used[charge->device];
    uint64_t *part = charge->kind == CHARGE_CONTEXT  ? &used->context_size
                     : charge->kind == CHARGE_MODULE ? &used->module_size
                                                     : &used->data_size;
    __atomic_store_n(part, *part + (uint64_t)delta, __ATOMIC_RELAXED);
    __atomic_store_n(&used->total, ledger_held(books(), process->slot, charge->device), __ATOMIC_RELAXED);
}

static bool try_to_take(const struct charge *charge)
{
    struct lock *lane = &process->lanes[charge->device];
    lock_take(lane);
    bool taken = ledger_charge(books(), process->slot, charge->device, charge->bytes, container_limit(charge->device));
    if (taken)
        publish(charge, (int64_t)charge->bytes);
    lock_drop(lane);
    return taken;
}

static void reap(void)
{
    int saved = errno;
    lock_take(&process->reaping);
    slot_reap(&container.region, &container.self);
    lock_drop(&process->reaping);
    errno = saved;
}

/* The largest holders first, as many as fit into the line. */
static void append_holders(char *line, size_t bytes, unsigned device)
{
    enum { SHOWN = 4 };
    uint64_t below = UINT64_MAX;
    for (unsigned shown = 0; shown < SHOWN; shown++) {
        uint64_t largest = 0;
        unsigned holder = SLOT_NONE;
        for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
            uint64_t held = books()->slots[slot].state == SLOT_USED ? ledger_held(books(), slot, device) : 0;
            if (held > largest && held < below) {
                largest = held;
                holder = slot;
            }
        }
        if (holder == SLOT_NONE)
            return;
        text_append(line, bytes, "%sprocess %u (%.15s) %llu", shown ? ", " : "; by ", books()->slots[holder].pid,
                    books()->slots[holder].name, (unsigned long long)largest);
        below = largest;
    }
}

static void say_out_of_memory(const struct charge *charge)
{
    static uint64_t said_at;
    char line[MESSAGE_BYTES] = "";
    uint64_t now = clock_coarse(), before = __atomic_load_n(&said_at, __ATOMIC_RELAXED);

    if ((before && now - before < NANOSECONDS_A_SECOND) ||
        !__atomic_compare_exchange_n(&said_at, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    text_append(line, sizeof(line), "out of GPU memory: container %s asked for %llu bytes on device %u (%.40s) and has %llu of %llu",
                container.name[0] ? container.name : "(unmanaged)", (unsigned long long)charge->bytes, charge->device,
                container.region.file->hami.uuids[charge->device],
                (unsigned long long)ledger_total(books(), charge->device), (unsigned long long)container_limit(charge->device));
    append_holders(line, sizeof(line), charge->device);
    text_append(line, sizeof(line), ". Free memory in this container, or raise %s",
                container.managed ? "gpu-memory or gpu-fraction of the pod" : "CUDA_DEVICE_MEMORY_LIMIT");
    if (!region_in_place(&container.region))
        text_append(line, sizeof(line), ". %.128s was removed: new processes will be refused until all of this container end",
                    container.region.path);
    message(MESSAGE_ERROR, "%s", line);
}

static void refuse(const struct charge *charge)
{
    struct extension_device *device = &books()->devices[charge->device];
    __atomic_fetch_add(&device->refusals, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&device->last_refusal, clock_unix_seconds(), __ATOMIC_RELAXED);
    __atomic_store_n(&device->last_refused, charge->bytes, __ATOMIC_RELAXED);
    say_out_of_memory(charge);
}

CUresult charge_current_device(unsigned *device)
{
    CUdevice current;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *device = DEVICE_NONE;
    if (process->attachment == UNCOUNTED)
        return CUDA_SUCCESS;
    result = cuda.cuCtxGetDevice(&current);
    if (result == CUDA_SUCCESS)
        *device = device_index(current);
    return result;
}

CUresult charge_take(struct charge *charge, unsigned device, enum charge_kind kind, uint64_t bytes)
{
    *charge = (struct charge){device, kind, bytes};
    if (device == DEVICE_NONE || try_to_take(charge))
        return CUDA_SUCCESS;
    /* Before a refusal: is the limit still that, and do the dead hold anything? */
    container_refresh();
    reap();
    if (try_to_take(charge))
        return CUDA_SUCCESS;
    refuse(charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void charge_give_back(const struct charge *charge)
{
    if (charge->device == DEVICE_NONE)
        return;
    struct lock *lane = &process->lanes[charge->device];
    lock_take(lane);
    ledger_release(books(), process->slot, charge->device, charge->bytes);
    publish(charge, -(int64_t)charge->bytes);
    lock_drop(lane);
}

bool charge_bind(const struct charge *charge, CUdeviceptr pointer)
{
    return charge->device == DEVICE_NONE ||
           allocations_add(&process->allocations,
                           (struct allocation){.pointer = pointer, .bytes = charge->bytes, .device = charge->device, .kind = charge->kind});
}

bool charge_unbind(CUdeviceptr pointer, struct charge *charge)
{
    struct allocation allocation;
    if (!allocations_take(&process->allocations, pointer, &allocation))
        return false;
    *charge = (struct charge){allocation.device, (enum charge_kind)allocation.kind, allocation.bytes};
    return true;
}

uint64_t charge_used(unsigned device)
{
    static uint64_t reaped_at;
    uint64_t now = clock_coarse(), before = __atomic_load_n(&reaped_at, __ATOMIC_RELAXED);
    if (now - before >= REAP_PAUSE &&
        __atomic_compare_exchange_n(&reaped_at, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        reap();
    return ledger_total(books(), device);
}
