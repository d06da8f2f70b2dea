#define _GNU_SOURCE
#include "charge.h"

#include <errno.h>
#include <stdio.h>

#include "clock.h"
#include "container.h"
#include "devices.h"
#include "driver.h"
#include "ledger.h"
#include "message.h"
#include "settle.h"
#include "signals.h"
#include "slot.h"
#include "slow.h"

enum { REAP_PAUSE = NANOSECONDS_A_SECOND / 10 };

static struct extension *books(void)
{
    return &container.region.file->extension;
}

/* Where this process charges a device. Looked up before the lane's lock is taken: the processor reads nothing ahead of that. */
struct account {
    struct lock *lock;
    struct extension *books;
    unsigned slot;
    struct hami_used *used;
};

static inline struct account account_of(unsigned device)
{
    struct process *mine = process;
    return (struct account){&mine->lanes[device], books(), mine->slot, &container.region.file->hami.procs[mine->slot].used[device]};
}

/* What monitors read. Only this process writes it, under the lane's lock. */
static inline void publish(struct hami_used *used, enum charge_kind kind, int64_t delta)
{
    uint64_t *part = kind == CHARGE_OVERHEAD ? &used->context_size : &used->data_size;
    __atomic_store_n(part, *part + (uint64_t)delta, __ATOMIC_RELAXED);
    __atomic_store_n(&used->total, used->total + (uint64_t)delta, __ATOMIC_RELAXED);
}

/* Begins the page of HOT. */
HOT __attribute__((aligned(4096))) static bool take_up_to(const struct charge *charge, uint64_t limit)
{
    unsigned device = charge->payer.device;
    const struct account account = account_of(device);
    lock_take_briefly(account.lock);
    bool taken = ledger_charge(account.books, account.slot, device, charge->bytes, limit);
    if (taken)
        publish(account.used, charge->kind, (int64_t)charge->bytes);
    lock_drop_briefly(account.lock);
    return taken;
}

HOT bool charge_try(struct charge *charge, struct payer payer, enum charge_kind kind, uint64_t bytes)
{
    *charge = (struct charge){payer, kind, bytes};
    return payer.device == DEVICE_NONE || take_up_to(charge, container_limit(payer.device));
}

static void reap(void)
{
    int saved = errno;
    lock_take(&process->reaping);
    slot_keep(&container.region, process->slot, &container.self);
    slot_reap(&container.region, &container.self);
    lock_drop(&process->reaping);
    errno = saved;
}

/* The largest holders first, as many as fit into the line. */
static void append_holders(char *line, size_t bytes, unsigned device)
{
    enum { SHOWN = 4 };
    uint64_t last = UINT64_MAX;
    unsigned last_holder = 0;
    for (unsigned shown = 0; shown < SHOWN; shown++) {
        uint64_t largest = 0;
        unsigned holder = SLOT_NONE;
        for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
            uint64_t held = books()->slots[slot].state == SLOT_USED ? ledger_held(books(), slot, device) : 0;
            bool follows = held < last || (held == last && slot > last_holder);
            if (held > largest && follows) {
                largest = held;
                holder = slot;
            }
        }
        if (holder == SLOT_NONE)
            return;
        text_append(line, bytes, "%sprocess %u (%.15s) %llu", shown ? ", " : "; by ", books()->slots[holder].pid,
                    books()->slots[holder].name, (unsigned long long)largest);
        last = largest;
        last_holder = holder;
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
                container.name[0] ? container.name : "(unmanaged)", (unsigned long long)charge->bytes, charge->payer.device,
                container.region.file->hami.uuids[charge->payer.device],
                (unsigned long long)ledger_total(books(), charge->payer.device), (unsigned long long)container_limit(charge->payer.device));
    append_holders(line, sizeof(line), charge->payer.device);
    text_append(line, sizeof(line), ". Free memory in this container, or raise %s",
                container.managed ? "gpu-memory or gpu-fraction of the pod" : "CUDA_DEVICE_MEMORY_LIMIT");
    if (!region_in_place(&container.region))
        text_append(line, sizeof(line), ". %.128s was removed: new processes will be refused until all of this container end",
                    container.region.path);
    message(MESSAGE_ERROR, "%s", line);
}

static void refuse(const struct charge *charge)
{
    struct extension_device *device = &books()->devices[charge->payer.device];
    __atomic_fetch_add(&device->refusals, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&device->last_refusal, clock_unix_seconds(), __ATOMIC_RELAXED);
    __atomic_store_n(&device->last_refused, charge->bytes, __ATOMIC_RELAXED);
    say_out_of_memory(charge);
}

CUresult charge_device(CUdevice device, struct payer *payer)
{
    CUresult result = container_enter();
    *payer = (struct payer){DEVICE_NONE, NULL};
    if (result == CUDA_SUCCESS && process->attachment == COUNTED)
        payer->device = device_index(device);
    return result;
}

CUresult charge_location(CUmemLocation location, struct payer *payer)
{
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return charge_device(location.id, payer);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: return charge_device(location.id & 0xff, payer);
    }
    *payer = (struct payer){DEVICE_NONE, NULL};
    return container_enter();
}

/* A green context's is the primary one with fewer multiprocessors, under a name of its own that no call has made a context of. */
static CUcontext ends_with(CUcontext context, unsigned device)
{
    struct record record;
    if (device == DEVICE_NONE || records_find(&process->holdings.contexts, (uintptr_t)context, &record))
        return context;
    CUcontext primary = __atomic_load_n(&process->holdings.primary[device], __ATOMIC_RELAXED);
    return primary ? primary : context;
}

HOT CUresult charge_current(struct payer *payer)
{
    CUcontext current = NULL;
    CUdevice device;
    CUresult result = container_enter();
    *payer = (struct payer){DEVICE_NONE, NULL};
    if (result != CUDA_SUCCESS || process->attachment == UNCOUNTED)
        return result;
    /* A thread mostly stays in one context, and a context on its device; only when one has ended may its name mean another. */
    static __thread struct {
        CUcontext current;
        struct payer payer;
        uint32_t ended;
    } last;
    uint32_t ended = __atomic_load_n(&process->holdings.contexts_ended, __ATOMIC_ACQUIRE);
    result = cuda.cuCtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current && current == last.current && ended == last.ended) {
        *payer = last.payer;
        return CUDA_SUCCESS;
    }
    result = cuda.cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS)
        return result;
    payer->device = device_index(device);
    payer->context = ends_with(current, payer->device);
    last.current = current;
    last.payer = *payer;
    last.ended = ended;
    return CUDA_SUCCESS;
}

/* Before a refusal: is the limit still that, does this process still hold what it is charged for, do the dead hold anything? This takes
 * long, and the program knows nothing of it. */
static SLOW CUresult take_or_refuse(const struct charge *charge)
{
    unsigned device = charge->payer.device;
    sigset_t before = signals_hold();
    container_refresh();
    settle_and_trim(device);
    reap();
    bool taken = take_up_to(charge, container_limit(device));
    if (!taken)
        refuse(charge);
    signals_release(&before);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

HOT CUresult charge_take(struct charge *charge, struct payer payer, enum charge_kind kind, uint64_t bytes)
{
    return charge_try(charge, payer, kind, bytes) ? CUDA_SUCCESS : take_or_refuse(charge);
}

HOT void charge_give_back(const struct charge *charge)
{
    unsigned device = charge->payer.device;
    if (device == DEVICE_NONE)
        return;
    const struct account account = account_of(device);
    lock_take_briefly(account.lock);
    ledger_release(account.books, account.slot, device, charge->bytes);
    publish(account.used, charge->kind, -(int64_t)charge->bytes);
    lock_drop_briefly(account.lock);
}

void charge_correct(struct charge *charge, uint64_t bytes)
{
    struct charge difference = *charge;
    if (charge->payer.device == DEVICE_NONE || bytes == charge->bytes)
        return;
    difference.bytes = bytes > charge->bytes ? bytes - charge->bytes : charge->bytes - bytes;
    if (bytes > charge->bytes)
        take_up_to(&difference, LIMIT_NONE);
    else
        charge_give_back(&difference);
    charge->bytes = bytes;
}

HOT bool charge_bind(struct records *records, const struct charge *charge, uint64_t key)
{
    return charge->payer.device == DEVICE_NONE || records_add(records, (struct record){.key = key,
                                                                                       .bytes = charge->bytes,
                                                                                       .device = charge->payer.device,
                                                                                       .kind = charge->kind,
                                                                                       .owner = (uintptr_t)charge->payer.context});
}

uint64_t charge_used(unsigned device)
{
    static uint64_t reaped_at;
    uint64_t now = clock_coarse(), before = __atomic_load_n(&reaped_at, __ATOMIC_RELAXED);
    if (now - before >= REAP_PAUSE &&
        __atomic_compare_exchange_n(&reaped_at, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        reap();
    settle_for_query(device);
    return ledger_total(books(), device);
}

uint64_t charge_held(unsigned device)
{
    return ledger_held(books(), process->slot, device);
}

uint64_t charge_steps(unsigned device)
{
    return ledger_steps(books(), process->slot, device);
}
