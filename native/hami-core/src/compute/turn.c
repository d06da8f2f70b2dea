#define _GNU_SOURCE
#include "turn.h"

#include <errno.h>
#include <sys/mman.h>

#include "../clock.h"
#include "../devices.h"
#include "../environment.h"
#include "../memory/contexts.h"
#include "../signals.h"
#include "bucket.h"
#include "captures.h"
#include "orders.h"
#include "utilization.h"

#define MILLISECOND UINT64_C(1000000)

/* A blocked launch sleeps at least that long, so that short kernels come in handfuls, and not much longer than that without looking
 * whether the cap has changed. */
#define LEAST_SLEEP MILLISECOND
#define MOST_SLEEP (100 * MILLISECOND)

/* Limits and orders are looked at again after that. */
static const uint64_t LOOK_PAUSE = 250 * MILLISECOND;

/* Few launches of that length fill the time between two looks: after each of them, one is due. */
static const uint64_t LONG_LAUNCH = MILLISECOND;

static const uint64_t TRIM_PAUSE = NANOSECONDS_A_SECOND / 2;

/* How long a launch waits for the first of its kind to be timed. That one may itself wait for what this thread launches next. */
static const uint64_t FIRST_OF_ITS_KIND = NANOSECONDS_A_SECOND;

/* HAMi's monitor blocks by a negative recent_kernel and looks every 5 s. */
static const uint64_t BLOCKED_PAUSE = 10 * MILLISECOND;

/* How long one who gives way sleeps before it looks again: that much of the card is lost each time. */
static const uint64_t ORDERED_PAUSE = 100000;

enum { HAMI_RECENT = 2 };

__thread unsigned turn_quiet;
__thread uint64_t turn_looked_at;
__thread bool turn_several;

static struct compute *get_compute(void)
{
    struct compute *mine = __atomic_load_n(&process->compute, __ATOMIC_ACQUIRE), *expected = NULL;
    int saved = errno;
    if (mine)
        return mine;
    mine = mmap(NULL, sizeof(*mine), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (mine == MAP_FAILED)
        return NULL;
    if (__atomic_compare_exchange_n(&process->compute, &expected, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return mine;
    munmap(mine, sizeof(*mine));
    return expected;
}

static struct hami_region *hami(void)
{
    return &container.region.file->hami;
}

static struct extension_device *extension_of(unsigned device)
{
    return &container.region.file->extension.devices[device];
}

static struct compute_bucket *bucket_of(unsigned device)
{
    return &extension_of(device)->compute;
}

/* Percent, 0 = none. */
static uint32_t cap_of(const struct compute *compute, unsigned device)
{
    return __atomic_load_n(&compute->caps[device], __ATOMIC_RELAXED);
}

/* HAMi's environment and its monitor decide whether a cap holds only where HAMi set it. */
static bool caps_hold(void)
{
    if (container.managed)
        return true;
    enum cores_policy policy = environment_cores_policy();
    return policy == CORES_ALWAYS || (policy == CORES_BY_MONITOR && __atomic_load_n(&hami()->utilization_switch, __ATOMIC_RELAXED) != 0);
}

static enum order order_now(unsigned device)
{
    uint64_t word = __atomic_load_n(&extension_of(device)->order, __ATOMIC_RELAXED);
    return __builtin_expect(word == 0, 1) ? ORDER_NONE : order_of(word, clock_now());
}

static void read_caps(struct compute *compute)
{
    /* Where the kernel does not wipe the process's page in a child of fork, only container_enter knows whose it is. */
    bool hold = caps_hold(), first = container_is_first(), wiped = process->owner == 0, metered = first || !wiped;
    unsigned visible = 0, last = DEVICE_NONE;
    for (unsigned device = 0; device < REGION_DEVICES; device++) {
        if (!device_is_visible(device))
            continue;
        uint64_t percent = container_cores(device);
        uint32_t cap = hold && percent >= 1 && percent < 100 ? (uint32_t)percent : 0;
        __atomic_store_n(&compute->caps[device], cap, __ATOMIC_RELAXED);
        metered |= cap != 0 || order_now(device) != ORDER_NONE;
        last = device;
        visible++;
    }
    bool one = visible == 1, capped = one && cap_of(compute, last) != 0;
    __atomic_store_n(&compute->only, one ? last : (unsigned)DEVICE_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(&compute->capped, capped, __ATOMIC_RELAXED);
    __atomic_store_n(&compute->paying, one && wiped && (capped || first) ? extension_of(last) : NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&compute->first, first, __ATOMIC_RELAXED);
    __atomic_store_n(&compute->metered, metered, __ATOMIC_RELEASE);
}

/* When NVML's window ended, by our clock: its time is that of the day. */
static uint64_t end_of_window(uint64_t sample, uint64_t now)
{
    uint64_t today = clock_unix() / 1000, age = today > sample ? (today - sample) * 1000 : 0;
    return now > age ? now - age : 0;
}

/* One process of the container at a time. */
static void trim(struct compute *compute, unsigned device, uint64_t now)
{
    const uint64_t window = NANOSECONDS_A_SECOND;
    struct compute_bucket *bucket = bucket_of(device);
    uint64_t trimmed_at = __atomic_load_n(&bucket->trimmed_at, __ATOMIC_RELAXED), sample = bucket->sample_seen;
    unsigned percent;
    int64_t paid;
    if ((now - trimmed_at < TRIM_PAUSE && now >= trimmed_at) ||
        !__atomic_compare_exchange_n(&bucket->trimmed_at, &trimmed_at, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
        !utilization_of_container(device, &sample, &percent))
        return;
    bucket->sample_seen = sample;
    uint64_t end = end_of_window(sample, now);
    if (paid_between(&compute->paid[device], end - window, end, &paid))
        __atomic_store_n(&bucket->factor, trim_factor(bucket->factor, window / 100 * percent, paid), __ATOMIC_RELAXED);
}

static void look_locked(struct compute *compute, uint64_t now, bool again)
{
    __atomic_store_n(&compute->looked_at, now, __ATOMIC_RELAXED);
    if (again)
        container_refresh();
    read_caps(compute);
    for (unsigned device = 0; device < REGION_DEVICES; device++)
        if (cap_of(compute, device)) {
            uint64_t exactly = clock_now();
            paid_note(&compute->paid[device], exactly, bucket_paid(bucket_of(device)));
            trim(compute, device, exactly);
        }
}

static void look(struct compute *compute, uint64_t now)
{
    uint64_t looked_at = __atomic_load_n(&compute->looked_at, __ATOMIC_RELAXED);
    if (looked_at && now - looked_at < LOOK_PAUSE)
        return;
    sigset_t held = signals_hold();
    if (lock_try(&compute->looking)) {
        look_locked(compute, now, looked_at != 0);
        lock_drop(&compute->looking);
    }
    signals_release(&held);
}

/* What HAMi's monitor reads: that this container launches, and when it last did. */
static void publish(void)
{
    uint64_t now = clock_unix_seconds();
    if (__atomic_load_n(&hami()->last_kernel_time, __ATOMIC_RELAXED) != now)
        __atomic_store_n(&hami()->last_kernel_time, now, __ATOMIC_RELAXED);
    int32_t recent = __atomic_load_n(&hami()->recent_kernel, __ATOMIC_RELAXED);
    while (recent >= 0 && recent != HAMI_RECENT &&
           !__atomic_compare_exchange_n(&hami()->recent_kernel, &recent, HAMI_RECENT, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void count_throttled(unsigned device, uint64_t ns)
{
    struct extension *extension = &container.region.file->extension;
    __atomic_fetch_add(&extension->devices[device].throttled, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&extension->slots[process->slot].throttled, ns, __ATOMIC_RELAXED);
}

/* HAMi's monitor stops a container of low priority while one of a higher is at work. */
static void wait_for_priority(void)
{
    while ((container.managed || environment_cores_policy() != CORES_NEVER) && __atomic_load_n(&hami()->recent_kernel, __ATOMIC_RELAXED) < 0)
        clock_sleep(BLOCKED_PAUSE);
}

static void look_now_and_then(void)
{
    uint64_t now = clock_coarse(), before = turn_looked_at;
    /* A thread that launches rarely looks each time, and one that launches often once in a tick of the kernel's clock. */
    turn_quiet = now - before < 50 * MILLISECOND ? QUIET_LAUNCHES - 1 : 0;
    if (now == before)
        return;
    turn_looked_at = now;
    struct compute *compute = get_compute();
    if (compute)
        look(compute, now);
    wait_for_priority();
    publish();
}

static void pay(struct compute_bucket *bucket, int64_t price, bool capped)
{
    if (capped)
        bucket_pay(bucket, price);
    else
        bucket_count(bucket, price);
}

static void pay_for_unpaid(struct cost *cost, unsigned device)
{
    uint32_t launches = __atomic_exchange_n(&cost->unpaid, 0, __ATOMIC_RELAXED);
    if (launches)
        pay(bucket_of(device), bucket_price(bucket_of(device), cost->ns) * launches, cap_of(process->compute, device) != 0);
}

static void collect(struct compute *compute)
{
    if (__atomic_load_n(&compute->meters.pending, __ATOMIC_RELAXED) == 0)
        return;
    sigset_t held = signals_hold();
    meters_collect(&compute->meters, pay_for_unpaid);
    signals_release(&held);
}

static uint64_t sleep_throttled(unsigned device, uint64_t now, uint64_t ns)
{
    clock_sleep(ns);
    uint64_t woken = clock_now();
    count_throttled(device, woken - now);
    return woken;
}

/* Those who wait for the same debt would else wake in the same order for ever, and the first take all there is. */
static uint64_t scatter(uint64_t now)
{
    static uint64_t threads;
    static __thread uint64_t number;
    if (number == 0)
        number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    uint64_t mixed = (now ^ (uint64_t)process->slot << 32 ^ number << 48) * UINT64_C(0x9e3779b97f4a7c15);
    return (mixed >> 32) % LEAST_SLEEP;
}

static void note_paid(struct compute *compute, unsigned device, uint64_t now)
{
    sigset_t held = signals_hold();
    if (lock_try(&compute->looking)) {
        paid_note(&compute->paid[device], now, bucket_paid(bucket_of(device)));
        lock_drop(&compute->looking);
    }
    signals_release(&held);
}

static void wait_for_budget(struct compute *compute, unsigned device)
{
    struct compute_bucket *bucket = bucket_of(device);
    uint64_t now = clock_now();
    for (;;) {
        uint32_t cap = cap_of(compute, device);
        collect(compute);
        if (cap == 0)
            return;
        bucket_refill(bucket, now, cap);
        uint64_t wait = bucket_wait(bucket_balance(bucket), cap);
        if (wait == 0)
            return;
        wait = wait < LEAST_SLEEP ? LEAST_SLEEP : wait > MOST_SLEEP ? MOST_SLEEP : wait;
        now = sleep_throttled(device, now, wait + scatter(now));
        note_paid(compute, device, now);
        look(compute, clock_coarse());
    }
}

/* Of a kind of launch that was never timed, one at a time is let through. True: this is the one. */
static bool wait_to_be_first(struct compute *compute, struct cost *cost, unsigned device)
{
    uint64_t pause = MILLISECOND / 50, began = clock_now(), now = began;
    while (__atomic_load_n(&cost->ns, __ATOMIC_RELAXED) == 0 && now - began < FIRST_OF_ITS_KIND) {
        if (cost_time(cost, now))
            return true;
        collect(compute);
        if (__atomic_load_n(&cost->ns, __ATOMIC_RELAXED) == 0)
            now = sleep_throttled(device, now, pause);
        pause = pause < MILLISECOND ? pause * 2 : MILLISECOND;
    }
    return false;
}

static unsigned device_of(const struct compute *compute, CUstream stream, bool per_thread)
{
    CUdevice device;
    unsigned only = __atomic_load_n(&compute->only, __ATOMIC_RELAXED);
    if (only != DEVICE_NONE)
        return only;
    return context_device_of_stream(stream, per_thread, &device) == CUDA_SUCCESS ? device_index(device) : (unsigned)DEVICE_NONE;
}

/* One who gives way may not launch now. What takes nobody knows how long goes when nothing else is on the card. */
static bool is_stopped(const struct compute *compute, unsigned device, const struct cost *cost)
{
    uint64_t waiting = __atomic_load_n(&compute->meters.waiting[device], __ATOMIC_RELAXED), ns = cost_sure(cost), now = clock_now();
    uint64_t until = __atomic_load_n(&container.region.file->extension.devices[device].free_until, __ATOMIC_RELAXED);
    enum order order = order_now(device);
    if (ns == 0)
        return order == ORDER_HOLD || (order != ORDER_NONE && waiting > 0);
    return order_stops(order, ns, waiting, until > now ? until - now : 0);
}

/* Until the launch may go by what was ordered. */
static void give_way(struct compute *compute, unsigned device, const struct cost *cost)
{
    for (;;) {
        collect(compute);
        if (!is_stopped(compute, device, cost))
            return;
        sleep_throttled(device, clock_now(), ORDERED_PAUSE);
        look(compute, clock_coarse());
    }
}

/* While giving way, the end of some launches is watched, so that what lies on the card is known. */
static void weigh(struct compute *compute, unsigned device, struct turn *turn, uint64_t ns)
{
    enum { WATCHED_OF_EACH = 4 };
    uint64_t unwatched = __atomic_add_fetch(&compute->unwatched[device], ns, __ATOMIC_RELAXED);
    if (!turn->meter && unwatched >= ORDER_AT_MOST / WATCHED_OF_EACH) {
        sigset_t held = signals_hold();
        turn->meter = meter_begin(&compute->meters, NULL, device, turn->stream, turn->per_thread);
        signals_release(&held);
    }
    if (turn->meter)
        meter_weigh(&compute->meters, turn->meter, __atomic_exchange_n(&compute->unwatched[device], 0, __ATOMIC_RELAXED));
}

/* Times this launch, unless another of its kind is being timed; `mine`: this one has the right already. */
static struct meter *begin_timing(struct compute *compute, const struct turn *turn, bool mine)
{
    sigset_t held = signals_hold();
    struct meter *meter = NULL;
    meters_collect(&compute->meters, pay_for_unpaid);
    if (mine || cost_time(turn->cost, clock_now()))
        meter = meter_begin(&compute->meters, turn->cost, turn->device, turn->stream, turn->per_thread);
    signals_release(&held);
    return meter;
}

static void wait_and_pay(struct turn *turn, uint64_t key)
{
    struct compute *compute = process->compute;
    unsigned device = device_of(compute, turn->stream, turn->per_thread);
    if (device == DEVICE_NONE)
        return;
    bool capped = cap_of(compute, device) != 0, ordered = order_now(device) != ORDER_NONE;
    if ((!capped && !ordered && !__atomic_load_n(&compute->first, __ATOMIC_RELAXED)) || captures_touch(turn->stream, turn->per_thread))
        return;
    if (__builtin_expect(meters_own != NULL, 0) && !turn_several)
        meters_abandon(&compute->meters);
    struct cost *cost = costs_find(&compute->costs, key);
    bool timed = false;
    if (capped && bucket_balance(bucket_of(device)) <= 0)
        wait_for_budget(compute, device);
    if (ordered)
        give_way(compute, device, cost);
    if (__builtin_expect(__atomic_load_n(&cost->ns, __ATOMIC_RELAXED) == 0, 0) && (capped || ordered)) {
        timed = wait_to_be_first(compute, cost, device);
        if (ordered && !timed)
            give_way(compute, device, cost);
    }
    uint64_t ns = __atomic_load_n(&cost->ns, __ATOMIC_RELAXED);
    if (ns >= LONG_LAUNCH)
        turn_quiet = 0;
    turn->bucket = bucket_of(device);
    turn->capped = capped;
    turn->cost = cost;
    turn->device = device;
    turn->price = bucket_price(turn->bucket, ns);
    turn->unpaid = ns == 0;
    turn->meter = NULL;
    if (turn->unpaid)
        __atomic_fetch_add(&cost->unpaid, 1, __ATOMIC_RELAXED);
    else
        pay(turn->bucket, turn->price, capped);
    if (timed || cost_is_due(cost))
        turn->meter = begin_timing(compute, turn, timed);
    if (ordered)
        weigh(compute, device, turn, ns);
}

/* Not inlined, so that turn_take saves no registers for it. */
static __attribute__((noinline)) CUresult take_with_care(struct turn *turn, uint64_t key, CUstream stream, bool per_thread)
{
    CUresult result = container_enter();
    *turn = (struct turn){.stream = stream, .per_thread = per_thread};
    if (result != CUDA_SUCCESS || process->attachment != COUNTED)
        return result;
    if (turn_quiet-- == 0)
        look_now_and_then();
    const struct compute *compute = __atomic_load_n(&process->compute, __ATOMIC_ACQUIRE);
    if (compute && __atomic_load_n(&compute->metered, __ATOMIC_RELAXED))
        wait_and_pay(turn, key);
    return CUDA_SUCCESS;
}

/* Nearly every launch under a cap: what it costs is known, it need not wait, and nothing is to be looked at or timed. It pays, and that
 * is all. What is out of the ordinary is left to take_with_care, which asks each question again. */
CUresult turn_take(struct turn *turn, uint64_t key, CUstream stream, bool per_thread)
{
    const struct process *mine = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
    struct compute *compute = mine ? __atomic_load_n(&mine->compute, __ATOMIC_ACQUIRE) : NULL;
    struct extension_device *device = compute ? __atomic_load_n(&compute->paying, __ATOMIC_RELAXED) : NULL;
    if (!device || turn_quiet == 0 || meters_own || __atomic_load_n(&captures_open, __ATOMIC_ACQUIRE) != 0 ||
        __atomic_load_n(&device->order, __ATOMIC_RELAXED) != 0)
        return take_with_care(turn, key, stream, per_thread);
    struct cost *cost = costs_known(&compute->costs, key);
    uint64_t ns = cost && cost_countdown(cost) > 0 ? __atomic_load_n(&cost->ns, __ATOMIC_RELAXED) : 0;
    bool capped = __atomic_load_n(&compute->capped, __ATOMIC_RELAXED);
    if (ns == 0 || ns >= LONG_LAUNCH || (capped && bucket_balance(&device->compute) <= 0))
        return take_with_care(turn, key, stream, per_thread);
    turn_quiet--;
    cost_is_due(cost); /* counts it: no */
    turn->bucket = &device->compute;
    turn->price = bucket_price(&device->compute, ns);
    turn->capped = capped;
    turn->meter = NULL;
    turn->unpaid = false;
    pay(&device->compute, turn->price, capped);
    return CUDA_SUCCESS;
}

void turn_graph_ends(uint64_t key)
{
    struct compute *compute = __atomic_load_n(&process->compute, __ATOMIC_ACQUIRE);
    struct cost *cost = compute ? costs_known(&compute->costs, key) : NULL;
    if (!cost)
        return;
    collect(compute);
    cost_begin_anew(cost);
}

void turn_functions_end(void)
{
    struct compute *compute = __atomic_load_n(&process->compute, __ATOMIC_ACQUIRE);
    if (!compute)
        return;
    collect(compute);
    for (unsigned i = 0; i < COSTS; i++)
        if (__atomic_load_n(&compute->costs.table[i].key, __ATOMIC_RELAXED))
            cost_begin_anew(&compute->costs.table[i]);
}

/* False: there is none, since its kind was timed meanwhile and all that was unpaid has been paid for. */
static bool forget_unpaid(struct cost *cost)
{
    uint32_t unpaid = __atomic_load_n(&cost->unpaid, __ATOMIC_RELAXED);
    while (unpaid > 0 && !__atomic_compare_exchange_n(&cost->unpaid, &unpaid, unpaid - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return unpaid > 0;
}

void turn_settle(struct turn *turn, CUresult result)
{
    bool launched = result == CUDA_SUCCESS;
    if (turn->meter)
        meter_end(&process->compute->meters, turn->meter, turn->stream, turn->per_thread, launched);
    if (launched || (turn->unpaid && forget_unpaid(turn->cost)))
        return;
    pay(turn->bucket, turn->unpaid ? -bucket_price(turn->bucket, turn->cost->ns) : -turn->price, turn->capped);
}
