/* The bytes of usage.cache: HAMi's layout 1.2 and the extension block behind it. docs/region.md says what each field means. */
#ifndef REGION_LAYOUT_H
#define REGION_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum {
    REGION_DEVICES = 16,
    REGION_SLOTS = 1024,
    REGION_UUID_BYTES = 96,

    HAMI_MAGIC = 19920718,
    HAMI_MAJOR = 1,
    HAMI_MINOR = 2,
    HAMI_BYTES = 2008952,
    HAMI_V0_BYTES = 1197896,

    EXTENSION_OFFSET = 2011136,
    EXTENSION_VERSION = 1,
    EXTENSION_FLAG_MANAGED = 1,

    LOCK_BYTE_GATE = REGION_SLOTS,
};

#define EXTENSION_MAGIC "ISOLATOR"

struct hami_used {
    uint64_t context_size;
    uint64_t module_size;
    uint64_t data_size;
    uint64_t offset;
    uint64_t total;
    uint64_t unused[3];
};

struct hami_utilization {
    uint64_t dec;
    uint64_t enc;
    uint64_t sm_util;
    uint64_t unused[3];
};

struct hami_slot {
    int32_t pid;
    int32_t hostpid;
    struct hami_used used[REGION_DEVICES];
    uint64_t monitorused[REGION_DEVICES];
    struct hami_utilization device_util[REGION_DEVICES];
    int32_t status;
    uint32_t padding;
    uint64_t seqlock;
    uint64_t unused[2];
};

struct hami_region {
    int32_t magic;
    int32_t major_version;
    int32_t minor_version;
    int32_t sm_init_flag;
    uint64_t owner_pid;
    unsigned char sem[32];
    uint64_t device_num;
    char uuids[REGION_DEVICES][REGION_UUID_BYTES];
    uint64_t limit[REGION_DEVICES];
    uint64_t sm_limit[REGION_DEVICES];
    struct hami_slot procs[REGION_SLOTS];
    int32_t proc_num;
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t priority;
    uint64_t last_kernel_time;
    unsigned char sem_postinit[32];
};

/* The total of one device and the tag of the step that made it, swapped together. */
struct tagged_total {
    _Alignas(16) uint64_t total;
    uint64_t tag;
};

struct extension_header {
    char magic[8];
    uint32_t version;
    uint32_t flags;
    uint64_t bytes;
    uint32_t slots;
    uint32_t devices;
    uint64_t created;
    unsigned char reserved[4096 - 40];
};

/* The compute cap's budget of one device, in nanoseconds of GPU time, shared by all processes of the container. */
struct compute_bucket {
    int64_t balance;      /* below 0: owed */
    uint64_t refilled_at; /* CLOCK_MONOTONIC, 0 = never */
    uint64_t refilled;    /* all that was ever added */
    uint64_t factor;      /* by which prices are multiplied, in 1/65536; 0 = 1 */
    uint64_t trimmed_at;  /* CLOCK_MONOTONIC */
    uint64_t sample_seen; /* NVML's time of the last utilisation sample, microseconds */
    unsigned char reserved[16];
};

struct extension_device {
    struct tagged_total books;
    unsigned char line0[64 - 16];
    uint64_t limit;
    uint64_t card_total;
    uint64_t cuda_total;
    uint64_t refusals;
    uint64_t last_refusal;
    uint64_t last_refused;
    unsigned char line1[128 - 112];
    uint64_t throttled;
    uint64_t order; /* a monitor's: nanoseconds of CLOCK_MONOTONIC when it was given, its last three bits an enum order */
    uint64_t free_until; /* with an order: CLOCK_MONOTONIC, nobody of priority 0 is expected to launch before */
    unsigned char line2[192 - 152];
    struct compute_bucket compute;
    unsigned char reserved[512 - 256];
};

struct extension_slot {
    uint32_t state;
    uint32_t pid;
    uint64_t start_time;
    uint64_t pid_namespace;
    uint64_t image;
    uint64_t attached;
    uint32_t unused;
    uint32_t flags;
    uint64_t throttled;
    char name[16];
    uint64_t host; /* a monitor's: the PID on the node, and in the upper half whose it is (slot_mark) */
    unsigned char reserved[128 - 80];
};

enum { SLOT_FREE = 0, SLOT_USED = 1 };

enum { SLOT_ESTIMATED = 1 };

struct lane {
    _Alignas(64) int64_t delta;
    uint64_t value[2];
    uint64_t settled;
    uint64_t helped;
};

struct extension {
    struct extension_header header;
    struct extension_device devices[REGION_DEVICES];
    struct extension_slot slots[REGION_SLOTS];
    struct lane lanes[REGION_SLOTS][REGION_DEVICES];
};

struct region_file {
    struct hami_region hami;
    unsigned char gap[EXTENSION_OFFSET - HAMI_BYTES];
    struct extension extension;
};

_Static_assert(sizeof(struct hami_used) == 64, "used");
_Static_assert(sizeof(struct hami_utilization) == 48, "device_util");
_Static_assert(sizeof(struct hami_slot) == 1960, "slot");
_Static_assert(offsetof(struct hami_slot, monitorused) == 1032, "monitorused");
_Static_assert(offsetof(struct hami_slot, device_util) == 1160, "device_util");
_Static_assert(offsetof(struct hami_slot, status) == 1928, "status");
_Static_assert(offsetof(struct hami_slot, seqlock) == 1936, "seqlock");
_Static_assert(offsetof(struct hami_region, owner_pid) == 16, "owner_pid");
_Static_assert(offsetof(struct hami_region, sem) == 24, "sem");
_Static_assert(offsetof(struct hami_region, device_num) == 56, "device_num");
_Static_assert(offsetof(struct hami_region, uuids) == 64, "uuids");
_Static_assert(offsetof(struct hami_region, limit) == 1600, "limit");
_Static_assert(offsetof(struct hami_region, sm_limit) == 1728, "sm_limit");
_Static_assert(offsetof(struct hami_region, procs) == 1856, "procs");
_Static_assert(offsetof(struct hami_region, proc_num) == 2008896, "proc_num");
_Static_assert(offsetof(struct hami_region, priority) == 2008908, "priority");
_Static_assert(offsetof(struct hami_region, last_kernel_time) == 2008912, "last_kernel_time");
_Static_assert(offsetof(struct hami_region, sem_postinit) == 2008920, "sem_postinit");
_Static_assert(sizeof(struct hami_region) == HAMI_BYTES, "HAMi's region");
_Static_assert(sizeof(struct extension_header) == 4096, "extension header");
_Static_assert(sizeof(struct compute_bucket) == 64, "compute bucket");
_Static_assert(sizeof(struct extension_device) == 512, "extension device");
_Static_assert(offsetof(struct extension_device, limit) == 64, "extension limit");
_Static_assert(offsetof(struct extension_device, throttled) == 128, "extension throttled");
_Static_assert(offsetof(struct extension_device, order) == 136, "extension order");
_Static_assert(offsetof(struct extension_device, compute) == 192, "extension compute cap");
_Static_assert(sizeof(struct extension_slot) == 128, "extension slot");
_Static_assert(offsetof(struct extension_slot, host) == 72, "extension host PID");
_Static_assert(sizeof(struct lane) == 64, "lane");
_Static_assert(offsetof(struct extension, devices) == 4096, "devices");
_Static_assert(offsetof(struct extension, slots) == 12288, "slots");
_Static_assert(offsetof(struct extension, lanes) == 143360, "lanes");
_Static_assert(sizeof(struct extension) == 1191936, "extension");
_Static_assert(offsetof(struct region_file, extension) == EXTENSION_OFFSET, "extension offset");
_Static_assert(sizeof(struct region_file) == 3203072, "file");

#endif
