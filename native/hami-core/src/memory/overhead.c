#include "overhead.h"

#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../kai.h"
#include "../nvml_cards.h"

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

/* What NVML books for this process beside its other charges, read while no charge was made or given back. Another thread in the
 * middle of an allocation makes it too small, never too large: memory is charged before it is taken and released after.
 * False: not known. */
static bool measure(unsigned device, uint64_t *bytes)
{
    enum { TRIES = 4 };
    uint32_t pid = container_host_pid();
    /* Managed memory is charged in full and may not be on the card: the difference says nothing. */
    if (__atomic_load_n(&process->holdings.managed[device], __ATOMIC_RELAXED) > 0)
        return false;
    for (unsigned i = 0; pid != 0 && i < TRIES; i++) {
        uint64_t booked, step = charge_steps(device), held = charge_held(device), own = overhead_of(device)->charge.bytes;
        if (!nvml_process_memory(device_uuid(device), pid, &booked))
            return false;
        uint64_t others = held > own ? held - own : 0;
        *bytes = booked > others ? booked - others : 0;
        if (charge_steps(device) == step)
            return true;
    }
    return false;
}

CUresult overhead_before_context(struct payer payer, struct charge *charge)
{
    if (payer.device == DEVICE_NONE) {
        *charge = (struct charge){payer, CHARGE_OVERHEAD, 0};
        return CUDA_SUCCESS;
    }
    return charge_take(charge, payer, CHARGE_OVERHEAD, estimate(device_handle(payer.device)));
}

void overhead_after_context(const struct charge *charge, CUresult result)
{
    unsigned device = charge->payer.device;
    uint64_t measured;
    if (device == DEVICE_NONE)
        return;
    if (result != CUDA_SUCCESS) {
        charge_give_back(charge);
        return;
    }
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    uint64_t before = overhead->charge.bytes;
    overhead->charge = (struct charge){{device, NULL}, CHARGE_OVERHEAD, before + charge->bytes};
    overhead->contexts++;
    if (measure(device, &measured))
        charge_correct(&overhead->charge, measured > before ? measured : before);
    else
        container_mark_estimated();
    overhead->known += overhead->charge.bytes - before;
    lock_drop(&overhead->lock);
}

void overhead_context_gone(unsigned device)
{
    uint64_t measured;
    if (device == DEVICE_NONE)
        return;
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    uint64_t left = overhead->contexts > 1 ? overhead->charge.bytes / overhead->contexts * (overhead->contexts - 1) : 0;
    if (overhead->contexts > 0)
        overhead->contexts--;
    if (overhead->contexts > 0 && measure(device, &measured) && measured > left)
        left = measured;
    charge_correct(&overhead->charge, left);
    overhead->known = left;
    lock_drop(&overhead->lock);
}

/* Under the lock. What calls were seen to take is given back by the calls that undo them; the rest is as large as it is found. */
static void find_again(struct overhead *overhead, unsigned device)
{
    uint64_t measured;
    if (overhead->contexts > 0 && measure(device, &measured))
        charge_correct(&overhead->charge, measured > overhead->known ? measured : overhead->known);
}

void overhead_settle(unsigned device)
{
    /* One that is being changed settles itself. */
    if (device == DEVICE_NONE || !lock_try(&overhead_of(device)->lock))
        return;
    find_again(overhead_of(device), device);
    lock_drop(&overhead_of(device)->lock);
}

uint64_t overhead_booked(unsigned device)
{
    uint64_t booked;
    uint32_t pid = device == DEVICE_NONE ? 0 : container_host_pid();
    bool managed = pid != 0 && __atomic_load_n(&process->holdings.managed[device], __ATOMIC_RELAXED) > 0;
    return managed && nvml_process_memory(device_uuid(device), pid, &booked) ? booked : 0;
}

uint64_t overhead_grown(unsigned device, uint64_t booked_before)
{
    if (device == DEVICE_NONE)
        return 0;
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    uint64_t before = overhead->charge.bytes, booked = booked_before ? overhead_booked(device) : 0;
    if (booked > booked_before)
        charge_correct(&overhead->charge, before + booked - booked_before);
    else
        find_again(overhead, device);
    uint64_t grown = overhead->charge.bytes > before ? overhead->charge.bytes - before : 0;
    overhead->known += grown;
    lock_drop(&overhead->lock);
    return grown;
}

void overhead_shrink(unsigned device, uint64_t bytes)
{
    if (device == DEVICE_NONE || bytes == 0)
        return;
    struct overhead *overhead = overhead_of(device);
    lock_take(&overhead->lock);
    overhead->known = overhead->known > bytes ? overhead->known - bytes : 0;
    charge_correct(&overhead->charge, overhead->charge.bytes > bytes ? overhead->charge.bytes - bytes : 0);
    lock_drop(&overhead->lock);
}
