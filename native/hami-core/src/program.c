/* The library as a program: executed, it says what holds in this container. So `kubectl exec POD -- /usr/local/vgpu/libvgpu.so`
 * answers "am I capped?" where there is no shell. It needs the glibc loader at the path below and takes no slot, makes no region
 * and starts no CUDA. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "container.h"
#include "devices.h"
#include "environment.h"
#include "nvml_cards.h"
#include "own_path.h"
#include "own_processes.h"
#include "preload.h"
#include "version.h"

#if defined(__x86_64__)
#define LOADER "/lib64/ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define LOADER "/lib/ld-linux-aarch64.so.1"
#endif

__attribute__((section(".interp"), used)) static const char interpreter[] = LOADER;

enum { STATUS_REFUSED = 1, STATUS_USAGE = 2, STATUS_NOT_PRELOADED = 3 };

struct device {
    char uuid[REGION_UUID_BYTES];
    unsigned index;
    struct card card;
    bool known; /* what follows */
    uint64_t limit;
    const char *from;
    uint64_t used;
};

struct report {
    char directory[PATH_BYTES];
    char region[PATH_BYTES];
    char reason[REASON_BYTES]; /* why CUDA is refused, empty if it is not */
    const char *preloaded_by;  /* NULL: nothing preloads the library into programs */
    struct sight sight;
    struct device devices[REGION_DEVICES];
    unsigned count;
};

static struct report report;
static struct own_process processes[REGION_SLOTS];

static void find_devices(void)
{
    const struct region_file *file = report.sight.file;
    struct nvml_card cards[REGION_DEVICES];
    uint64_t in_region = file ? file->hami.device_num : 0;

    for (unsigned i = 0; i < in_region && i < REGION_DEVICES; i++) {
        struct device *device = &report.devices[report.count++];
        snprintf(device->uuid, sizeof(device->uuid), "%.95s", file->hami.uuids[i]);
        device->index = i;
        device->card = devices_card(file, i);
    }
    if (report.count > 0)
        return;
    report.count = nvml_cards(cards);
    for (unsigned i = 0; i < report.count; i++) {
        snprintf(report.devices[i].uuid, sizeof(report.devices[i].uuid), "%.95s", cards[i].uuid);
        report.devices[i].index = DEVICE_NONE;
        report.devices[i].card.nvml_total = cards[i].total;
    }
}

static const char *source_of(const struct device *device)
{
    static char reason[REASON_BYTES];
    uint64_t own;

    if (!report.sight.managed)
        return report.sight.file ? "region" : "environment";
    if (environment_own_limit(&own, reason) && own == device->limit && own != LIMIT_NONE)
        return "ISOLATOR_MEMORY_LIMIT";
    if (report.sight.files.has_kai && device->limit == report.sight.files.kai_bytes)
        return "limits/CUDA_DEVICE_MEMORY_LIMIT";
    return "limits/request";
}

static void find_limits(void)
{
    const struct request *request = &report.sight.files.request;

    for (unsigned i = 0; i < report.count; i++) {
        struct device *device = &report.devices[i];
        bool needs_card = report.sight.managed && request->kind == MEMORY_FRACTION && !device->card.nvml_total && !device->card.cuda_total;
        device->known = !needs_card && sight_limit(&report.sight, device->index, i, device->card, &device->limit);
        if (device->known)
            device->from = source_of(device);
        own_processes(&report.sight, device->index, NULL, &device->used);
    }
}

static void look(void)
{
    struct limit_files files;
    char library[PATH_BYTES];
    bool derived;

    if (!own_directory(report.directory, sizeof(report.directory)) || !own_file(library, sizeof(library))) {
        snprintf(report.reason, sizeof(report.reason), "the library's own file cannot be found");
        return;
    }
    report.preloaded_by = preload_source(library);
    if (limit_files_read(report.directory, library, &files, report.reason) == LIMITS_INVALID || !container_look(&report.sight))
        return;
    report.reason[0] = '\0';
    files = report.sight.files;
    if (!report.sight.managed)
        environment_region_path(report.region, sizeof(report.region), &derived);
    else
        limit_files_region_path(&files, report.directory, report.region, sizeof(report.region));
    find_devices();
    find_limits();
}

static void write_request(void)
{
    const struct request *request = &report.sight.files.request;
    uint64_t whole = 1;

    if (request->kind == MEMORY_MIB) {
        dprintf(STDOUT_FILENO, "memory=%llum", (unsigned long long)request->memory_mib);
    } else if (request->kind == MEMORY_NONE) {
        dprintf(STDOUT_FILENO, "memory=none");
    } else {
        for (unsigned i = 0; i < request->fraction.places; i++)
            whole *= 10;
        if (request->fraction.digits == whole)
            dprintf(STDOUT_FILENO, "fraction=1");
        else
            dprintf(STDOUT_FILENO, "fraction=0.%0*llu", (int)request->fraction.places, (unsigned long long)request->fraction.digits);
    }
}

static void write_text_processes(const struct device *device)
{
    uint64_t sum;
    unsigned count = own_processes(&report.sight, device->index, processes, &sum);
    for (unsigned i = 0; i < count; i++)
        dprintf(STDOUT_FILENO, "  process %u: %llu bytes\n", processes[i].pid, (unsigned long long)processes[i].bytes);
}

static void write_text_device(unsigned number, const struct device *device)
{
    dprintf(STDOUT_FILENO, "device %u, %s: ", number, device->uuid);
    if (!device->known)
        dprintf(STDOUT_FILENO, "the limit follows when the card's memory is known");
    else if (device->limit == LIMIT_NONE)
        dprintf(STDOUT_FILENO, "no limit (%s)", device->from);
    else
        dprintf(STDOUT_FILENO, "limit %llu bytes (%s)", (unsigned long long)device->limit, device->from);
    dprintf(STDOUT_FILENO, ", used %llu bytes\n", (unsigned long long)device->used);
    write_text_processes(device);
}

static void write_text(void)
{
    dprintf(STDOUT_FILENO, "libvgpu %s in %s\n", VERSION, report.directory);
    if (report.reason[0]) {
        dprintf(STDOUT_FILENO, "CUDA is refused: %s\n", report.reason);
        return;
    }
    if (report.sight.managed) {
        dprintf(STDOUT_FILENO, "managed: container %s, request ", report.sight.files.request.container);
        write_request();
        if (report.sight.files.has_kai)
            dprintf(STDOUT_FILENO, ", KAI's file says %llu bytes", (unsigned long long)report.sight.files.kai_bytes);
        dprintf(STDOUT_FILENO, "\n");
    } else {
        dprintf(STDOUT_FILENO, "not managed: limits come from the environment of the program that starts first\n");
    }
    if (report.preloaded_by)
        dprintf(STDOUT_FILENO, "preloaded by %s\n", report.preloaded_by);
    else
        dprintf(STDOUT_FILENO, "not preloaded: programs pass by, since no /etc/ld.so.preload that is read and no LD_PRELOAD lists it\n");
    dprintf(STDOUT_FILENO, "region %s%s\n", report.region, report.sight.file ? "" : " (not there: no program has used CUDA yet)");
    for (unsigned i = 0; i < report.count; i++)
        write_text_device(i, &report.devices[i]);
    if (report.count == 0)
        dprintf(STDOUT_FILENO, "devices are not known: no program has used CUDA yet, and NVML does not tell\n");
}

static void write_string(const char *text)
{
    dprintf(STDOUT_FILENO, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            dprintf(STDOUT_FILENO, "\\%c", *c);
        else if (*c < 0x20)
            dprintf(STDOUT_FILENO, "\\u%04x", *c);
        else
            dprintf(STDOUT_FILENO, "%c", *c);
    }
    dprintf(STDOUT_FILENO, "\"");
}

static void write_json_device(const struct device *device)
{
    uint64_t sum;
    unsigned count = own_processes(&report.sight, device->index, processes, &sum);

    dprintf(STDOUT_FILENO, "{\"uuid\": ");
    write_string(device->uuid);
    if (device->known && device->limit != LIMIT_NONE)
        dprintf(STDOUT_FILENO, ", \"limit_bytes\": %llu", (unsigned long long)device->limit);
    else
        dprintf(STDOUT_FILENO, ", \"limit_bytes\": null");
    if (device->known)
        dprintf(STDOUT_FILENO, ", \"limit_from\": \"%s\"", device->from);
    else
        dprintf(STDOUT_FILENO, ", \"limit_from\": null");
    dprintf(STDOUT_FILENO, ", \"used_bytes\": %llu, \"processes\": [", (unsigned long long)sum);
    for (unsigned i = 0; i < count; i++)
        dprintf(STDOUT_FILENO, "%s{\"pid\": %u, \"used_bytes\": %llu}", i ? ", " : "", processes[i].pid,
                (unsigned long long)processes[i].bytes);
    dprintf(STDOUT_FILENO, "]}");
}

static void write_json(void)
{
    dprintf(STDOUT_FILENO, "{\"version\": \"%s\", \"directory\": ", VERSION);
    write_string(report.directory);
    if (report.reason[0]) {
        dprintf(STDOUT_FILENO, ", \"refused\": ");
        write_string(report.reason);
        dprintf(STDOUT_FILENO, "}\n");
        return;
    }
    dprintf(STDOUT_FILENO, ", \"refused\": null, \"managed\": %s", report.sight.managed ? "true" : "false");
    if (report.sight.managed) {
        dprintf(STDOUT_FILENO, ", \"container\": ");
        write_string(report.sight.files.request.container);
        dprintf(STDOUT_FILENO, ", \"request\": \"");
        write_request();
        dprintf(STDOUT_FILENO, "\", \"kai_bytes\": ");
        if (report.sight.files.has_kai)
            dprintf(STDOUT_FILENO, "%llu", (unsigned long long)report.sight.files.kai_bytes);
        else
            dprintf(STDOUT_FILENO, "null");
    }
    if (report.preloaded_by)
        dprintf(STDOUT_FILENO, ", \"preloaded_by\": \"%s\"", report.preloaded_by);
    else
        dprintf(STDOUT_FILENO, ", \"preloaded_by\": null");
    dprintf(STDOUT_FILENO, ", \"region\": ");
    write_string(report.region);
    dprintf(STDOUT_FILENO, ", \"region_exists\": %s, \"devices\": [", report.sight.file ? "true" : "false");
    for (unsigned i = 0; i < report.count; i++) {
        dprintf(STDOUT_FILENO, i ? ", " : "");
        write_json_device(&report.devices[i]);
    }
    dprintf(STDOUT_FILENO, "]}\n");
}

__attribute__((visibility("hidden"), used)) _Noreturn void program_main(long *stack);

_Noreturn void program_main(long *stack)
{
    int argc = (int)stack[0];
    char **argv = (char **)(stack + 1);
    bool json = argc == 2 && strcmp(argv[1], "--json") == 0;
    const char *executed = (const char *)getauxval(AT_EXECFN);

    if (argc > 1 && !json) {
        dprintf(STDERR_FILENO, "usage: libvgpu.so [--json]\n"
                               "Says what GPU memory this container may use, where that comes from, and who uses it.\n");
        _exit(strcmp(argv[1], "--help") == 0 ? 0 : STATUS_USAGE);
    }
    /* By a loader that was given the library's path, the path is in argv alone. */
    own_file_executed_as(argc > 0 && strchr(argv[0], '/') ? argv[0] : executed);
    look();
    if (json)
        write_json();
    else
        write_text();
    if (report.reason[0])
        _exit(STATUS_REFUSED);
    _exit(report.preloaded_by ? 0 : STATUS_NOT_PRELOADED);
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl libvgpu_program\n"
        ".type libvgpu_program, @function\n"
        "libvgpu_program:\n"
        "endbr64\n"
        "xorl %ebp, %ebp\n"
        "movq %rsp, %rdi\n"
        "andq $-16, %rsp\n"
        "call program_main\n"
        ".size libvgpu_program, . - libvgpu_program\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl libvgpu_program\n"
        ".type libvgpu_program, %function\n"
        "libvgpu_program:\n"
        "hint #38\n"
        "mov x29, xzr\n"
        "mov x30, xzr\n"
        "mov x0, sp\n"
        "bl program_main\n"
        ".size libvgpu_program, . - libvgpu_program\n");
#endif
