/* Turns, on a driver of this file that a test can hold up. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../src/clock.h"
#include "../src/compute/bucket.h"
#include "../src/compute/captures.h"
#include "../src/compute/orders.h"
#include "../src/compute/turn.h"
#include "../src/devices.h"
#include "../src/driver.h"
#include "../src/hooks.h"
#include "harness.h"

#define MILLISECOND INT64_C(1000000)

static struct {
    unsigned launches, events, live_events;
    bool ready;     /* events have happened */
    bool capturing; /* every stream is */
    int devices;    /* 0: one */
    CUdevice current;
    int signal; /* raised by what is asked about events */
    float took_ms;
    CUresult launched;
    void (*meanwhile)(void); /* what other threads do while the next launch is in the driver */
} driver;

static CUresult device_count(int *count)
{
    *count = driver.devices ? driver.devices : 1;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult device_uuid_v2(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x11 + device, sizeof(*uuid));
    return CUDA_SUCCESS;
}

static CUresult device_memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = 1 << 30;
    return CUDA_SUCCESS;
}

static CUresult device_pci(char *text, int bytes, CUdevice device)
{
    (void)device;
    strncpy(text, "0000:00:04.0", (size_t)bytes);
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    if (driver.signal)
        raise(driver.signal);
    *event = (CUevent)(uintptr_t)__atomic_add_fetch(&driver.events, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&driver.live_events, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    (void)event;
    __atomic_fetch_sub(&driver.live_events, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    (void)event;
    if (driver.signal)
        raise(driver.signal);
    return __atomic_load_n(&driver.ready, __ATOMIC_ACQUIRE) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *milliseconds, CUevent begin, CUevent end)
{
    (void)begin;
    (void)end;
    *milliseconds = driver.took_ms;
    return CUDA_SUCCESS;
}

static CUresult current_device(CUdevice *device)
{
    *device = driver.current;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = driver.capturing ? (CUstreamCaptureStatus)1 : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)stream;
    (void)mode;
    driver.capturing = true;
    return CUDA_SUCCESS;
}

static CUresult end_capture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    (void)graph;
    driver.capturing = false;
    return CUDA_SUCCESS;
}

static CUresult launched(void)
{
    void (*meanwhile)(void) = __atomic_exchange_n(&driver.meanwhile, NULL, __ATOMIC_RELAXED);
    __atomic_fetch_add(&driver.launches, 1, __ATOMIC_RELAXED);
    if (meanwhile)
        meanwhile();
    return driver.launched;
}

static CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                              CUstream stream, void **parameters, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
    return launched();
}

static CUresult launch_cooperative(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                   unsigned shared, CUstream stream, void **parameters)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters;
    return launched();
}

static CUresult launch_ex(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
    (void)config, (void)f, (void)parameters, (void)extra;
    return launched();
}

static CUresult launch_many(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    (void)list, (void)count, (void)flags;
    return launched();
}

static CUresult launch_old(CUfunction f)
{
    (void)f;
    return launched();
}

static CUresult launch_grid(CUfunction f, int width, int height)
{
    (void)f, (void)width, (void)height;
    return launched();
}

static CUresult launch_grid_async(CUfunction f, int width, int height, CUstream stream)
{
    (void)f, (void)width, (void)height, (void)stream;
    return launched();
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream)
{
    (void)graph, (void)stream;
    return launched();
}

static void use_driver(void)
{
    cuda.cuDeviceGetCount = device_count;
    cuda.cuDeviceGet = device_get;
    cuda.cuDeviceGetUuid_v2 = device_uuid_v2;
    cuda.cuDeviceTotalMem_v2 = device_memory;
    cuda.cuDeviceGetPCIBusId = device_pci;
    cuda.cuCtxGetDevice = current_device;
    cuda.cuEventCreate = event_create;
    cuda.cuEventDestroy_v2 = event_destroy;
    cuda.cuEventRecord = cuda.cuEventRecord_ptsz = event_record;
    cuda.cuEventQuery = event_query;
    cuda.cuEventElapsedTime = event_elapsed;
    cuda.cuStreamIsCapturing = cuda.cuStreamIsCapturing_ptsz = is_capturing;
    cuda.cuStreamBeginCapture_v2 = begin_capture;
    cuda.cuStreamEndCapture = end_capture;
    cuda.cuLaunchKernel = cuda.cuLaunchKernel_ptsz = launch_kernel;
    cuda.cuLaunchKernelEx = cuda.cuLaunchKernelEx_ptsz = launch_ex;
    cuda.cuLaunchCooperativeKernel = cuda.cuLaunchCooperativeKernel_ptsz = launch_cooperative;
    cuda.cuLaunchCooperativeKernelMultiDevice = launch_many;
    cuda.cuLaunch = launch_old;
    cuda.cuLaunchGrid = launch_grid;
    cuda.cuLaunchGridAsync = launch_grid_async;
    cuda.cuGraphLaunch = cuda.cuGraphLaunch_ptsz = launch_graph;
}

/* An unmanaged container with one device and this cap, whose kernels take so long. */
static struct compute_bucket *begin(unsigned percent, float took_ms)
{
    static struct process own;
    char reason[REASON_BYTES];
    struct region_file *file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(file != MAP_FAILED);
    use_driver();
    driver.took_ms = took_ms;
    driver.ready = true;
    own.attachment = COUNTED;
    process = &own;
    container.region.file = file;
    file->hami.device_num = 2;
    file->hami.sm_limit[0] = percent;
    file->hami.utilization_switch = 1;
    strcpy(file->hami.uuids[0], "GPU-11111111-1111-1111-1111-111111111111");
    strcpy(file->hami.uuids[1], "GPU-12121212-1212-1212-1212-121212121212");
    CHECK_EQUAL(devices_discover(), CUDA_SUCCESS);
    CHECK(devices_register(&container.region, NULL, reason));
    return &file->extension.devices[0].compute;
}

static CUresult launch(uintptr_t function)
{
    return cuLaunchKernel((CUfunction)function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static int64_t paid(const struct compute_bucket *bucket)
{
    return BUCKET_BURST - bucket->balance;
}

TEST(every_way_to_launch_pays)
{
    struct compute_bucket *bucket = begin(50, 1);
    CUfunction f = (CUfunction)8;
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    CUDA_LAUNCH_PARAMS many = {f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL};
    for (unsigned way = 0; way < 12; way++) {
        /* The first is timed, the second pays for both. */
        for (unsigned i = 0; i < 2; i++) {
            CUresult result = CUDA_ERROR_NOT_SUPPORTED;
            bucket->refilled_at = clock_now() + NANOSECONDS_A_SECOND / 2; /* stands still */
            bucket->balance = i == 0 ? BUCKET_BURST : bucket->balance;
            unsigned other = way + 2; /* a kind of its own, by its grid */
            switch (way) {
            case 0: result = cuLaunchKernel(f, other, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); break;
            case 1: result = cuLaunchKernel_ptsz(f, other, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL); break;
            case 2: config.gridDimX = other; result = cuLaunchKernelEx(&config, f, NULL, NULL); break;
            case 3: config.gridDimX = other; result = cuLaunchKernelEx_ptsz(&config, f, NULL, NULL); break;
            case 4: result = cuLaunchCooperativeKernel(f, other, 1, 1, 32, 1, 1, 0, NULL, NULL); break;
            case 5: result = cuLaunchCooperativeKernel_ptsz(f, other, 1, 1, 32, 1, 1, 0, NULL, NULL); break;
            case 6: many.gridDimX = other; result = cuLaunchCooperativeKernelMultiDevice(&many, 1, 0); break;
            case 7: result = cuLaunch((CUfunction)16); break;
            case 8: result = cuLaunchGrid((CUfunction)24, 4, 4); break;
            case 9: result = cuLaunchGridAsync((CUfunction)32, 4, 4, NULL); break;
            case 10: result = cuGraphLaunch((CUgraphExec)40, NULL); break;
            case 11: result = cuGraphLaunch_ptsz((CUgraphExec)48, NULL); break;
            }
            CHECK_EQUAL(result, CUDA_SUCCESS);
        }
        if (paid(bucket) != 2 * MILLISECOND)
            check_failed(__FILE__, __LINE__, "way %u paid %lld ns, not 2000000", way, (long long)paid(bucket));
    }
    CHECK_EQUAL(driver.launches, 24);
}

TEST(without_a_cap_nothing_is_timed_or_paid)
{
    struct compute_bucket *bucket = begin(100, 1);
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQUAL(launch(8), CUDA_SUCCESS);
    CHECK_EQUAL(driver.events, 0);
    CHECK_EQUAL(bucket->refilled_at, 0);
    CHECK_EQUAL(container.region.file->hami.recent_kernel, 2);
    CHECK(container.region.file->hami.last_kernel_time + 2 >= clock_unix_seconds());
}

TEST(hamis_policy_and_switch_turn_a_cap_off)
{
    static const struct {
        const char *policy;
        int monitor_switch;
        bool capped;
    } cases[] = {{"", 1, true}, {"", 0, false}, {"force", 0, true}, {"FORCE", 0, true}, {"disable", 1, false}, {"Force", 0, false}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            setenv("GPU_CORE_UTILIZATION_POLICY", cases[i].policy, 1);
            begin(50, 1);
            container.region.file->hami.utilization_switch = cases[i].monitor_switch;
            launch(8);
            _exit((driver.events != 0) != cases[i].capped);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            check_failed(__FILE__, __LINE__, "policy \"%s\", switch %d", cases[i].policy, cases[i].monitor_switch);
    }
}

TEST(a_pid_is_believed_only_of_the_process_of_whom_it_was_told)
{
    begin(50, 1);
    struct extension_slot *slot = &container.region.file->extension.slots[3];
    *slot = (struct extension_slot){.state = SLOT_USED, .pid = 4711, .start_time = 123456789, .image = 0xfedcba9876543210, .pid_namespace = 1};
    CHECK_EQUAL(container_host_pid_of(3), 0);
    slot->host = UINT64_C(0x0c8c7ae1) << 32 | 4242; /* the monitor's tests have the same mark */
    CHECK_EQUAL(container_host_pid_of(3), 4242);
    slot->pid++;
    CHECK_EQUAL(container_host_pid_of(3), 0);
    slot->pid--;
    slot->start_time++;
    CHECK_EQUAL(container_host_pid_of(3), 0);
    slot->start_time--;
    slot->image ^= 1;
    CHECK_EQUAL(container_host_pid_of(3), 0);
    slot->pid_namespace = 0xeffffffc; /* the node's own */
    CHECK_EQUAL(container_host_pid_of(3), 4711);
}

TEST(a_capturing_stream_is_left_alone)
{
    struct compute_bucket *bucket = begin(50, 1);
    CUgraph graph;
    launch(8); /* looks for a cap */
    unsigned events = driver.events;
    int64_t balance = bucket->balance;
    CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    bucket->balance = -1000 * MILLISECOND;
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQUAL(launch(16), CUDA_SUCCESS);
    CHECK_EQUAL(bucket->balance, -1000 * MILLISECOND);
    CHECK_EQUAL(driver.events, events);
    CHECK_EQUAL(captures_open, 1);
    CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_SUCCESS);
    CHECK_EQUAL(captures_open, 0);
    bucket->balance = balance;
}

TEST(a_launch_that_fails_is_not_paid_for)
{
    struct compute_bucket *bucket = begin(50, 1);
    launch(8);
    launch(8);
    int64_t before = bucket->balance;
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQUAL(launch(8), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(launch(16), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(bucket->balance, before);
    CHECK_EQUAL(driver.live_events, 0);
}

TEST(more_devices_than_there_can_be_are_the_drivers_to_refuse)
{
    const struct compute_bucket *bucket = begin(50, 1);
    CUDA_LAUNCH_PARAMS one = {.function = (CUfunction)8, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1};
    int64_t before = bucket->balance;
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    CHECK_EQUAL(cuLaunchCooperativeKernelMultiDevice(&one, UINT32_MAX, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(driver.launches, 1);
    CHECK_EQUAL(bucket->balance, before);
}

static void first_of_its_kind_ends(void)
{
    CUresult result = driver.launched;
    driver.ready = true;
    driver.launched = CUDA_SUCCESS;
    launch(16); /* notices it */
    driver.launched = result;
}

/* The first of a kind takes longer than the second waits for it; it ends while the second is with the driver, which refuses it. */
TEST(a_launch_that_fails_once_its_kind_is_known_gives_back_what_was_paid)
{
    const struct compute_bucket *bucket = begin(50, 1);
    driver.ready = false;
    CHECK_EQUAL(launch(8), CUDA_SUCCESS);
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    driver.meanwhile = first_of_its_kind_ends;
    CHECK_EQUAL(launch(8), CUDA_ERROR_INVALID_VALUE);
    driver.launched = CUDA_SUCCESS;
    int64_t before = bucket->balance;
    CHECK_EQUAL(launch(8), CUDA_SUCCESS);
    CHECK_EQUAL(launch(8), CUDA_SUCCESS);
    CHECK_EQUAL(before - bucket->balance, 3 * MILLISECOND); /* both, and that of the other kind, which was timed meanwhile */
}

static CUresult end_graph(CUgraphExec graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

/* A graph or a kernel of 50 us, and then another of 50 ms by that name. The third launch of that pays for it. */
TEST(another_graph_or_kernel_of_the_same_name_has_a_price_of_its_own)
{
    for (unsigned graphs = 0; graphs < 2; graphs++) {
        struct compute_bucket *bucket = begin(50, 0.05f);
        int64_t before = 0;
        cuda.cuGraphExecDestroy = end_graph;
        cuda.cuModuleUnload = unload;
        for (unsigned i = 0; i < 103; i++) {
            if (i == 100) {
                CHECK_EQUAL(graphs ? cuGraphExecDestroy((CUgraphExec)40) : cuModuleUnload((CUmodule)48), CUDA_SUCCESS);
                driver.took_ms = 50;
            }
            before = bucket->balance = 1000 * MILLISECOND;
            CHECK_EQUAL(graphs ? cuGraphLaunch((CUgraphExec)40, NULL) : launch(56), CUDA_SUCCESS);
        }
        CHECK_EQUAL(before - bucket->balance, 50 * MILLISECOND);
    }
}

static void pause_ms(unsigned milliseconds)
{
    clock_sleep(milliseconds * (uint64_t)MILLISECOND);
}

static void order(enum order kind)
{
    uint64_t now = clock_now() & ~(uint64_t)ORDER_BITS;
    __atomic_store_n(&container.region.file->extension.devices[0].order, now | kind, __ATOMIC_RELAXED);
}

/* With a budget for all that a test launches, and of a kind of launch that is timed only now and then. */
static struct compute_bucket *begin_known(void)
{
    struct compute_bucket *bucket = begin(50, 0.05f);
    for (unsigned i = 0; i < 20; i++)
        launch(8);
    bucket->balance = 1000 * MILLISECOND;
    driver.events = 0;
    return bucket;
}

TEST(each_launch_of_a_known_kind_pays_and_few_are_timed)
{
    const struct compute_bucket *bucket = begin_known();
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    for (unsigned i = 0; i < 100; i++) {
        CHECK_EQUAL(launch(8), CUDA_SUCCESS);
        CHECK_EQUAL(cuLaunchKernelEx(&config, (CUfunction)8, NULL, NULL), CUDA_SUCCESS);
    }
    CHECK_EQUAL(bucket->balance, 990 * MILLISECOND);
    CHECK(driver.events >= 2 * 4 && driver.events <= 2 * 5); /* one in 2 ms of its work, a pair each */
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQUAL(launch(8), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(bucket->balance, 990 * MILLISECOND);
}

TEST(what_a_known_kind_costs_is_learned_anew)
{
    struct compute_bucket *bucket = begin_known();
    driver.took_ms = 0.025f;
    for (unsigned i = 0; i < 200; i++)
        launch(8);
    bucket->balance = 1000 * MILLISECOND;
    for (unsigned i = 0; i < 100; i++)
        launch(8);
    CHECK_EQUAL(bucket->balance, 1000 * MILLISECOND - 100 * 25000);
}

TEST(a_known_kind_waits_for_a_debt)
{
    struct compute_bucket *bucket = begin_known();
    bucket->balance = -30 * MILLISECOND;
    bucket->refilled_at = clock_now();
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK(clock_now() - begin_at >= 59 * (uint64_t)MILLISECOND);
}

TEST(a_known_kind_is_held_by_an_order)
{
    begin_known();
    order(ORDER_HOLD);
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK(clock_now() - begin_at >= ORDER_VALID);
}

TEST(a_captured_launch_of_a_known_kind_is_not_paid_for)
{
    struct compute_bucket *bucket = begin_known();
    CUgraph graph;
    CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    launch(8);
    CHECK_EQUAL(bucket->balance, 1000 * MILLISECOND);
    CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_SUCCESS);
    launch(8);
    CHECK_EQUAL(bucket->balance, 1000 * MILLISECOND - 50000);
}

TEST(a_cap_that_is_lifted_and_set_again_holds_for_a_known_kind)
{
    static const unsigned caps[] = {100, 50};
    struct compute_bucket *bucket = begin_known();
    for (unsigned i = 0; i < 2; i++) {
        container.region.file->hami.sm_limit[0] = caps[i];
        pause_ms(300);
        for (unsigned j = 0; j < 2 * QUIET_LAUNCHES; j++)
            launch(8); /* one of these looks again */
        int64_t before = bucket->balance;
        for (unsigned j = 0; j < 100; j++)
            launch(8);
        CHECK_EQUAL(before - bucket->balance, caps[i] == 100 ? 0 : 5 * MILLISECOND);
    }
}

TEST(a_debt_is_waited_for_and_the_wait_is_counted)
{
    struct compute_bucket *bucket = begin(50, 40);
    const struct extension *extension = &container.region.file->extension;
    launch(8); /* timed */
    launch(8); /* pays 80 ms, the burst is 10 */
    uint64_t begin_at = clock_now();
    launch(8); /* waits for 70 ms of GPU time */
    uint64_t waited = clock_now() - begin_at;
    CHECK(waited > 120 * (uint64_t)MILLISECOND);
    CHECK(bucket->balance < 0);
    CHECK(extension->devices[0].throttled > 120 * (uint64_t)MILLISECOND && extension->devices[0].throttled <= waited);
    CHECK_EQUAL(extension->slots[0].throttled, extension->devices[0].throttled);
}

static void *launch_again(void *done)
{
    launch(8);
    __atomic_store_n((bool *)done, true, __ATOMIC_RELEASE);
    return NULL;
}

TEST(one_of_an_unknown_kind_is_let_through_until_it_was_timed)
{
    begin(50, 0.01f);
    bool done = false;
    pthread_t other;
    driver.ready = false;
    launch(8);
    CHECK_EQUAL(pthread_create(&other, NULL, launch_again, &done), 0);
    pause_ms(100);
    CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    CHECK_EQUAL(driver.launches, 1);
    launch(16); /* another kind goes at once, while the other thread waits */
    CHECK_EQUAL(driver.launches, 2);
    __atomic_store_n(&driver.ready, true, __ATOMIC_RELEASE);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
    CHECK_EQUAL(driver.launches, 3);
}

TEST(a_kernel_that_waits_for_the_next_of_its_kind_gets_it)
{
    struct compute_bucket *bucket = begin(50, 1);
    driver.ready = false; /* and never will be before the second launch */
    launch(8);
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK(clock_now() - begin_at < 20 * (uint64_t)NANOSECONDS_A_SECOND);
    CHECK_EQUAL(driver.launches, 2);
    driver.ready = true;
    bucket->balance = BUCKET_BURST;
    bucket->refilled_at = clock_now() + NANOSECONDS_A_SECOND / 2;
    launch(8); /* all three are paid for */
    CHECK_EQUAL(paid(bucket), 3 * MILLISECOND);
}

TEST(a_thread_that_waits_for_budget_holds_up_no_other_call)
{
    struct compute_bucket *bucket = begin(1, 0.001f);
    CUgraph graph;
    bool done = false;
    pthread_t other;
    launch(8);
    launch(8);
    bucket->balance = -3 * MILLISECOND; /* 300 ms */
    CHECK_EQUAL(pthread_create(&other, NULL, launch_again, &done), 0);
    pause_ms(50);
    CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    launch(16); /* captured: at once */
    CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_SUCCESS);
    turn_contexts_end();
    CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    CHECK_EQUAL(pthread_join(other, NULL), 0);
}

static sigjmp_buf back;
static volatile sig_atomic_t signals;

static void count_signal(int signal)
{
    (void)signal;
    signals++;
}

static void jump_back(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

TEST(signals_are_handled_while_a_launch_waits)
{
    struct compute_bucket *bucket = begin(1, 0.001f);
    struct itimerval soon = {.it_value = {.tv_usec = 20000}};
    launch(8);
    launch(8);
    bucket->balance = -3 * MILLISECOND;
    signal(SIGALRM, count_signal);
    setitimer(ITIMER_REAL, &soon, NULL);
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK_EQUAL(signals, 1);
    CHECK(clock_now() - begin_at > 250 * (uint64_t)MILLISECOND); /* it waited on */
    bucket->balance = -100000 * MILLISECOND;
    signal(SIGALRM, jump_back);
    if (sigsetjmp(back, 1) == 0) {
        setitimer(ITIMER_REAL, &soon, NULL);
        launch(8);
        check_failed(__FILE__, __LINE__, "the launch did not wait");
    }
    bucket->balance = BUCKET_BURST;
    CHECK_EQUAL(launch(8), CUDA_SUCCESS);
    CHECK_EQUAL(launch(16), CUDA_SUCCESS);
}

TEST(a_raised_cap_wakes_who_waits)
{
    struct compute_bucket *bucket = begin(1, 0.001f);
    bool done = false;
    pthread_t other;
    launch(8);
    launch(8);
    bucket->balance = -200 * MILLISECOND; /* 20 s at 1 % */
    CHECK_EQUAL(pthread_create(&other, NULL, launch_again, &done), 0);
    pause_ms(50);
    uint64_t begin_at = clock_now();
    __atomic_store_n(&container.region.file->hami.sm_limit[0], 100, __ATOMIC_RELAXED);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
    CHECK(clock_now() - begin_at < 5 * (uint64_t)NANOSECONDS_A_SECOND);
}

TEST(devices_have_caps_and_budgets_of_their_own)
{
    driver.devices = 2;
    struct compute_bucket *first = begin(50, 1), *second = &container.region.file->extension.devices[1].compute;
    container.region.file->hami.sm_limit[1] = 100;
    first->refilled_at = second->refilled_at = clock_now() + NANOSECONDS_A_SECOND / 2;
    first->balance = BUCKET_BURST;
    for (unsigned i = 0; i < 2; i++)
        launch(8);
    CHECK_EQUAL(paid(first), 2 * MILLISECOND);
    driver.current = 1;
    first->balance = -1000 * MILLISECOND; /* 2 s: not this one's */
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK(clock_now() - begin_at < (uint64_t)NANOSECONDS_A_SECOND);
    CHECK_EQUAL(second->refilled, 0);
    container.region.file->hami.sm_limit[1] = 10;
    pause_ms(300);
    for (unsigned i = 0; i < 2 * QUIET_LAUNCHES; i++) {
        launch(24); /* one of these looks again */
        second->balance = BUCKET_BURST;
    }
    second->balance = BUCKET_BURST;
    second->refilled_at = clock_now() + NANOSECONDS_A_SECOND / 2;
    for (unsigned i = 0; i < 2; i++)
        launch(16);
    CHECK_EQUAL(paid(second), 2 * MILLISECOND);
    CHECK_EQUAL(container.region.file->extension.devices[1].throttled, 0);
}

/* Without a cap, of a kind of launch whose cost is known. */
static struct compute_bucket *begin_ordered(float took_ms)
{
    struct compute_bucket *bucket = begin(100, took_ms);
    order(ORDER_BOUNDED);
    for (unsigned i = 0; i < 8; i++)
        launch(8);
    return bucket;
}

TEST(a_launch_that_is_held_goes_when_the_order_ends)
{
    begin_ordered(0.05f);
    bool done = false;
    pthread_t other;
    const uint64_t *throttled = &container.region.file->extension.devices[0].throttled;
    order(ORDER_HOLD);
    CHECK_EQUAL(pthread_create(&other, NULL, launch_again, &done), 0);
    for (unsigned i = 0; i < 100 && __atomic_load_n(throttled, __ATOMIC_RELAXED) <= 50 * (uint64_t)MILLISECOND; i++) {
        pause_ms(10);
        order(ORDER_HOLD); /* again, as a monitor does */
    }
    CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    CHECK(__atomic_load_n(throttled, __ATOMIC_RELAXED) > 50 * (uint64_t)MILLISECOND);
    order(ORDER_NONE);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
}

TEST(a_launch_is_not_held_by_a_monitor_that_is_gone)
{
    begin_ordered(0.05f);
    order(ORDER_HOLD);
    uint64_t begin_at = clock_now();
    launch(8);
    CHECK(clock_now() - begin_at >= ORDER_VALID);
}

static void *launch_several(void *count)
{
    for (unsigned i = 0; i < *(const unsigned *)count; i++)
        launch(8);
    return NULL;
}

TEST(who_gives_way_launches_on_as_what_it_launched_is_done)
{
    enum { LAUNCHES = 20, AT_MOST = 4, UNWATCHED = 2 }; /* half a millisecond, with the one of before */
    begin_ordered(0.1f);
    pthread_t other;
    unsigned before = driver.launches, count = LAUNCHES;
    driver.ready = false;
    CHECK_EQUAL(pthread_create(&other, NULL, launch_several, &count), 0);
    pause_ms(200);
    unsigned launched_then = __atomic_load_n(&driver.launches, __ATOMIC_RELAXED) - before;
    if (launched_then < AT_MOST || launched_then > AT_MOST + UNWATCHED)
        check_failed(__FILE__, __LINE__, "%u launches lie on the card", launched_then);
    order(ORDER_BOUNDED);
    __atomic_store_n(&driver.ready, true, __ATOMIC_RELEASE);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
    CHECK_EQUAL(driver.launches - before, LAUNCHES);
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 100; i++) {
        order(ORDER_BOUNDED);
        CHECK_EQUAL(launch(8), CUDA_ERROR_INVALID_VALUE); /* what was not launched is not waited for */
    }
}

TEST(what_is_long_waits_for_a_pause)
{
    begin_ordered(5);
    bool done = false;
    pthread_t other;
    order(ORDER_SHORT);
    CHECK_EQUAL(pthread_create(&other, NULL, launch_again, &done), 0);
    pause_ms(50);
    order(ORDER_SHORT);
    CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    __atomic_store_n(&container.region.file->extension.devices[0].free_until, clock_now() + NANOSECONDS_A_SECOND, __ATOMIC_RELAXED);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
}

TEST(a_slow_first_launch_does_not_make_a_kind_long)
{
    begin(100, 5);
    order(ORDER_SHORT);
    launch(8);
    launch(16); /* now it is known that the first took long */
    CHECK_EQUAL(process->compute->costs.table[cost_key(8, 1, 32) >> 1 & (COSTS - 1)].ns, 5 * MILLISECOND);
    driver.took_ms = 0.05f;
    uint64_t begin_at = clock_now();
    for (unsigned i = 0; i < 20; i++) {
        order(ORDER_SHORT);
        launch(8);
    }
    CHECK(clock_now() - begin_at < ORDER_VALID); /* none waited until its order ended */
    CHECK_EQUAL(process->compute->costs.table[cost_key(8, 1, 32) >> 1 & (COSTS - 1)].ns, 50000);
}

TEST(a_captured_launch_is_not_held)
{
    begin_ordered(0.05f);
    CUgraph graph;
    order(ORDER_HOLD);
    CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    uint64_t begin_at = clock_now();
    launch(16);
    CHECK(clock_now() - begin_at < (uint64_t)NANOSECONDS_A_SECOND);
    CHECK_EQUAL(cuStreamEndCapture(NULL, &graph), CUDA_SUCCESS);
}

TEST(what_is_launched_without_a_cap_is_counted_and_not_owed)
{
    struct compute_bucket *bucket = begin_ordered(0.1f);
    int64_t balance = bucket->balance, paid_before = bucket_paid(bucket);
    for (unsigned i = 0; i < 10; i++)
        launch(8);
    CHECK_EQUAL(bucket->balance, balance);
    CHECK_EQUAL(bucket_paid(bucket) - paid_before, MILLISECOND);
    driver.launched = CUDA_ERROR_INVALID_VALUE;
    launch(8);
    CHECK_EQUAL(bucket_paid(bucket) - paid_before, MILLISECOND);
}

static bool anything_is_locked(void)
{
    const struct compute *compute = process->compute;
    return process->starting.word || (compute && (compute->looking.word || compute->meters.lock.word || compute->costs.lock.word));
}

TEST(a_handler_that_jumps_away_leaves_nothing_locked)
{
    begin(50, 0.001f);
    container.managed = true; /* so that files are read at each look */
    process->attachment = COUNTED;
    signal(SIGALRM, jump_back);
    for (unsigned microseconds = 1; microseconds <= 300; microseconds++) {
        struct itimerval soon = {.it_value = {.tv_usec = microseconds}};
        if (sigsetjmp(back, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                if (process->compute)
                    process->compute->looked_at = 1;
                turn_quiet = 0;
                turn_looked_at = 0;
                launch(8);
            }
        }
        CHECK(!anything_is_locked());
    }
}

TEST(a_handler_that_jumps_away_loses_no_meter)
{
    begin(50, 1);
    signal(SIGALRM, jump_back);
    for (unsigned i = 0; i < 3 * METERS; i++) {
        launch(8);
        driver.signal = SIGALRM; /* when that one is asked about, or the next one is made */
        if (sigsetjmp(back, 1) == 0)
            launch(8);
        driver.signal = 0;
        CHECK(!anything_is_locked());
        container.region.file->extension.devices[0].compute.balance = BUCKET_BURST;
    }
    driver.took_ms = 2;
    for (unsigned i = 0; i < 6 * COST_SAMPLES; i++) { /* of which at least one in three is timed */
        container.region.file->extension.devices[0].compute.balance = BUCKET_BURST;
        launch(8);
    }
    CHECK_EQUAL(process->compute->costs.table[cost_key(8, 1, 32) >> 1 & (COSTS - 1)].ns, 2 * MILLISECOND);
}

TEST(what_is_timed_in_a_context_ends_with_it)
{
    begin(50, 1);
    driver.ready = false;
    launch(8);
    launch(16);
    CHECK_EQUAL(driver.live_events, 4);
    turn_contexts_end();
    CHECK_EQUAL(driver.live_events, 0);
    driver.ready = true;
    launch(8); /* is timed anew */
    CHECK_EQUAL(driver.live_events, 2);
}
