#include "overhead.h"

#include "../clock.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../kai.h"
#include "../ledger.h"
#include "../nvml_cards.h"
#include "../slot.h"

static struct overhead *overhead_of(unsigned device)
{
    return &process->holdings.overhead[device];
}

uint64_t overhead_estimate_mib(int major, int minor)
{
    switch (major) {
    case 7: return minor >= 5 ? 100 : 300;
    case 8: return minor == 0 ? 420 : 260;
    case 9: return 520;
    default: return major < 7 ? 150 : 560;
    }
}

static uint64_t estimate(CUdevice device)
{
    int major = 0, minor = 0;
    cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return overhead_estimate_mib(major, minor) * MIB;
}

static bool holds_managed(unsigned device)
{
    return __atomic_load_n(&process->holdings.managed[device], __ATOMIC_RELAXED) > 0;
}

static bool is_growing(unsigned device)
{
    return __atomic_load_n(&process->holdings.growing[device], __ATOMIC_ACQUIRE) > 0;
}

/* What this process has charged, and how often it has charged or given back. NVML tells of the whole of it: also of what another copy
 * of this library has charged, in a namespace that dlmopen made, which has a slot of its own. */
static uint64_t charged_by_process(unsigned device, uint64_t *steps)
{
    const struct region_file *file = container.region.file;
    uint64_t held = charge_held(device);
    int32_t ever_used = __atomic_load_n(&file->hami.proc_num, __ATOMIC_RELAXED);
    *steps = charge_steps(device);
    for (unsigned slot = 0; slot < REGION_SLOTS && (int32_t)slot < ever_used; slot++) {
        if (slot == process->slot || !slot_is_of(&file->extension.slots[slot], &container.self))
            continue;
        held += ledger_held(&file->extension, slot, device);
        *steps += ledger_steps(&file->extension, slot, device);
    }
    return held;
}

/* What NVML books for this process beside its other charges, read while no charge was made or given back. Another thread in the
 * middle of an allocation makes it too small, never too large: memory is charged before it is taken and released after, and where
 * the driver may take more, nothing is read meanwhile. Under the lock, as all that follows. False: not known. */
static bool look(unsigned device, int64_t *beside)
{
    enum { TRIES = 4 };
    uint32_t pid = container_host_pid();
    for (unsigned i = 0; pid != 0 && i < TRIES; i++) {
        bool grows = is_growing(device);
        uint64_t booked, steps, steps_after, held = charged_by_process(device, &steps), own = overhead_of(device)->charge.bytes;
        if (!nvml_process_memory(device_uuid(device), pid, &booked))
            return false;
        *beside = (int64_t)(booked - (held - own));
        charged_by_process(device, &steps_after);
        if (!grows && !is_growing(device) && steps_after == steps)
            return true;
    }
    return false;
}

static void set(struct overhead *overhead, uint64_t known, uint64_t found)
{
    overhead->known = known;
    __atomic_store_n(&overhead->found, found, __ATOMIC_RELAXED);
    overhead->charge.kind = CHARGE_OVERHEAD;
    overhead->charge.payer.device = (unsigned)(overhead - process->holdings.overhead);
    charge_correct(&overhead->charge, known + found);
}

static uint64_t less(uint64_t bytes, uint64_t gone)
{
    return bytes > gone ? bytes - gone : 0;
}

static bool nothing_found(unsigned device)
{
    return __atomic_load_n(&overhead_of(device)->found, __ATOMIC_SEQ_CST) == 0;
}

static bool is_estimated(unsigned device)
{
    return __atomic_load_n(&overhead_of(device)->estimated, __ATOMIC_RELAXED) > 0;
}

static void set_estimated(struct overhead *overhead, uint64_t bytes)
{
    bool any = false;
    __atomic_store_n(&overhead->estimated, bytes, __ATOMIC_RELAXED);
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        any |= is_estimated(device);
    container_mark_estimated(any);
}

/* What is there beside what is known. An estimate above it gives way; one below it stays, and the rest was found. */
static bool find(struct overhead *overhead, unsigned device, uint64_t *found)
{
    int64_t beside;
    if (overhead->contexts == 0 || holds_managed(device) || !look(device, &beside))
        return false;
    uint64_t there = beside > 0 ? (uint64_t)beside : 0;
    if (overhead->estimated > 0) {
        uint64_t seen = less(overhead->known, overhead->estimated), rest = less(there, seen);
        uint64_t kept = rest < overhead->estimated ? rest : overhead->estimated;
        overhead->taken = kept / (overhead->estimated / overhead->estimate);
        overhead->known = seen + kept;
        set_estimated(overhead, 0);
    }
    *found = less(there, overhead->known);
    return true;
}

void overhead_settle(unsigned device)
{
    uint64_t found;
    /* One that is being changed settles itself. */
    if (device == DEVICE_NONE || !lock_try(&overhead_of(device)->lock))
        return;
    struct overhead *overhead = overhead_of(device);
    uint64_t before = overhead->found;
    /* Who frees memory from now on waits for this lock, so that no rounding is found that is gone by then. */
    __atomic_store_n(&overhead->found, before ? before : 1, __ATOMIC_SEQ_CST);
    if (!find(overhead, device, &found))
        found = before;
    set(overhead, overhead->known, found);
    lock_drop(&overhead->lock);
}

void overhead_replace_estimates(unsigned device)
{
    static uint64_t looked_at;
    uint64_t now = clock_coarse(), before = __atomic_load_n(&looked_at, __ATOMIC_RELAXED);
    if (device != DEVICE_NONE && is_estimated(device) && container_host_pid() != 0 && now - before >= NANOSECONDS_A_SECOND &&
        __atomic_compare_exchange_n(&looked_at, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        overhead_settle(device);
}

struct overhead_mark overhead_mark(unsigned device)
{
    struct overhead_mark mark = {false, 0};
    if (device == DEVICE_NONE)
        return mark;
    lock_take(&overhead_of(device)->lock);
    mark.known = look(device, &mark.beside);
    lock_drop(&overhead_of(device)->lock);
    return mark;
}

/* Growth since the mark, where `charged` is the overhead's charge without it. False: not known. */
static bool grown(unsigned device, const struct overhead_mark *before, uint64_t charged, int64_t *growth)
{
    int64_t beside, floor = before->beside;
    if (!before->known || !look(device, &beside))
        return false;
    /* What another thread loaded meanwhile may be charged by now. */
    if (beside > floor && !holds_managed(device) && (int64_t)charged > floor)
        floor = (int64_t)charged < beside ? (int64_t)charged : beside;
    *growth = beside - floor;
    return true;
}

uint64_t overhead_changed(unsigned device, const struct overhead_mark *before, uint64_t had)
{
    int64_t growth, now;
    if (device == DEVICE_NONE)
        return 0;
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    now = (int64_t)had + (grown(device, before, overhead->charge.bytes, &growth) ? growth : 0);
    now = now > 0 ? now : 0;
    set(overhead, less(overhead->known, had) + (uint64_t)now, overhead->found);
    lock_drop(&overhead->lock);
    return (uint64_t)now;
}

static void gone(struct overhead *overhead, unsigned device, uint64_t had)
{
    uint64_t found = 0;
    overhead->known = less(overhead->known, had);
    if (overhead->found > 0 && !find(overhead, device, &found))
        found = 0;
    set(overhead, overhead->known, found);
}

void overhead_gone(unsigned device, uint64_t had)
{
    if (device == DEVICE_NONE || (had == 0 && nothing_found(device)))
        return;
    lock_take(&overhead_of(device)->lock);
    gone(overhead_of(device), device, had);
    lock_drop(&overhead_of(device)->lock);
}

static SLOW void less_is_found(struct overhead *overhead, uint64_t gone)
{
    lock_take(&overhead->lock);
    set(overhead, overhead->known, less(overhead->found, gone));
    lock_drop(&overhead->lock);
}

HOT void overhead_rounding_gone(unsigned device, uint64_t bytes)
{
    if (device != DEVICE_NONE && !nothing_found(device))
        less_is_found(overhead_of(device), charge_whole_pieces(bytes) - bytes);
}

CUresult overhead_before_context(struct payer payer, struct overhead_context *context)
{
    *context = (struct overhead_context){.charge = {payer, CHARGE_OVERHEAD, 0}};
    if (payer.device == DEVICE_NONE)
        return CUDA_SUCCESS;
    /* NVML lists no process without a context. */
    if (__atomic_load_n(&overhead_of(payer.device)->contexts, __ATOMIC_RELAXED) == 0)
        context->before.known = true;
    else
        context->before = overhead_mark(payer.device);
    return charge_take(&context->charge, payer, CHARGE_OVERHEAD, estimate(device_handle(payer.device)));
}

uint64_t overhead_after_context(const struct overhead_context *context, CUresult result)
{
    unsigned device = context->charge.payer.device;
    int64_t growth;
    if (device == DEVICE_NONE)
        return 0;
    if (result != CUDA_SUCCESS) {
        charge_give_back(&context->charge);
        return 0;
    }
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    uint64_t cost = context->charge.bytes, charged = overhead->charge.bytes;
    overhead->charge.bytes += cost;
    __atomic_fetch_add(&overhead->contexts, 1, __ATOMIC_RELAXED);
    if (grown(device, &context->before, charged, &growth)) {
        cost = growth > 0 ? (uint64_t)growth : 0;
    } else {
        overhead->estimate = overhead->taken = cost;
        set_estimated(overhead, overhead->estimated + cost);
    }
    set(overhead, overhead->known + cost, overhead->found);
    lock_drop(&overhead->lock);
    return cost;
}

void overhead_context_gone(unsigned device, uint64_t had)
{
    if (device == DEVICE_NONE)
        return;
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    if (overhead->contexts > 0 && __atomic_sub_fetch(&overhead->contexts, 1, __ATOMIC_RELAXED) == 0) {
        set_estimated(overhead, 0);
        set(overhead, 0, 0);
    } else {
        bool estimated = had == overhead->estimate;
        set_estimated(overhead, less(overhead->estimated, estimated ? had : 0));
        gone(overhead, device, estimated ? overhead->taken : had);
    }
    lock_drop(&overhead->lock);
}
