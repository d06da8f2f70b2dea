#include "config.h"

#include "faults.h"
#include "message.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t MIB = 1024 * 1024;

struct parser {
    struct config *config;
    struct device_config *device; /* NULL before the first [device] */
    char visible[1024];
    int visible_line;
    int line;
};

static bool fail(const struct parser *parser, const char *key, const char *value, const char *accepted) {
    message("%s:%d: %s = %s: expected %s", parser->config->path, parser->line, key, value, accepted);
    return false;
}

static bool parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out) {
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < least || number > most) {
        return false;
    }
    *out = number;
    return true;
}

/* "12.2" or "7.5": two decimal numbers. */
static bool parse_pair(const char *text, unsigned most, unsigned *major, unsigned *minor) {
    char after;
    return isdigit((unsigned char)*text) && sscanf(text, "%u.%u%c", major, minor, &after) == 2 && *major <= most &&
           *minor <= 9;
}

static bool parse_uuid(const char *text, const char *prefix) {
    if (strlen(text) != 40 || strncmp(text, prefix, 4) != 0) {
        return false;
    }
    for (int i = 4; i < 40; i++) {
        bool dash = i == 12 || i == 17 || i == 22 || i == 27;
        if (dash ? text[i] != '-' : !isxdigit((unsigned char)text[i])) {
            return false;
        }
    }
    return true;
}

static bool parse_mib(const struct parser *parser, const char *key, const char *value, uint64_t least, uint64_t *bytes) {
    uint64_t mib;
    if (!parse_number(value, least, 1u << 24, &mib)) {
        return fail(parser, key, value, "a whole number of MiB, at most 16777216");
    }
    *bytes = mib * MIB;
    return true;
}

static bool parse_unsigned(const struct parser *parser, const char *key, const char *value, unsigned most,
                           unsigned *out) {
    uint64_t number;
    if (!parse_number(value, 1, most, &number)) {
        char accepted[64];
        snprintf(accepted, sizeof accepted, "a whole number from 1 to %u", most);
        return fail(parser, key, value, accepted);
    }
    *out = (unsigned)number;
    return true;
}

static bool device_key(struct parser *parser, const char *key, const char *value) {
    struct device_config *device = parser->device;
    if (strcmp(key, "name") == 0) {
        if (*value == '\0' || strlen(value) >= sizeof device->name) {
            return fail(parser, key, value, "a name of 1 to 95 bytes");
        }
        strcpy(device->name, value);
        return true;
    }
    if (strcmp(key, "uuid") == 0) {
        if (!parse_uuid(value, "GPU-")) {
            return fail(parser, key, value, "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in hexadecimal digits");
        }
        strcpy(device->uuid, value);
        return true;
    }
    if (strcmp(key, "mig-uuid") == 0) {
        if (!parse_uuid(value, "MIG-")) {
            return fail(parser, key, value, "MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in hexadecimal digits");
        }
        strcpy(device->mig_uuid, value);
        return true;
    }
    if (strcmp(key, "memory-mib") == 0) {
        return parse_mib(parser, key, value, 1, &device->memory_bytes);
    }
    if (strcmp(key, "reserved-mib") == 0) {
        return parse_mib(parser, key, value, 0, &device->reserved_bytes);
    }
    if (strcmp(key, "context-mib") == 0) {
        return parse_mib(parser, key, value, 0, &device->context_bytes);
    }
    if (strcmp(key, "sm-count") == 0) {
        return parse_unsigned(parser, key, value, 1024, &device->sm_count);
    }
    if (strcmp(key, "clock-mhz") == 0) {
        return parse_unsigned(parser, key, value, 100000, &device->clock_mhz);
    }
    if (strcmp(key, "compute-capability") == 0) {
        return parse_pair(value, 99, &device->compute_major, &device->compute_minor) ||
               fail(parser, key, value, "MAJOR.MINOR, such as 7.5");
    }
    if (strcmp(key, "pci") == 0) {
        int used = 0;
        unsigned function;
        bool good = sscanf(value, "%8x:%2x:%2x.%1x%n", &device->pci_domain, &device->pci_bus, &device->pci_device,
                           &function, &used) == 4 &&
                    value[used] == '\0' && function == 0;
        return good || fail(parser, key, value, "DOMAIN:BUS:DEVICE.0 in hexadecimal digits, such as 0000:00:04.0");
    }
    return fail(parser, key, value,
                "one of the keys name, uuid, mig-uuid, memory-mib, reserved-mib, context-mib, sm-count, clock-mhz, "
                "compute-capability, pci");
}

static bool parse_choice(const struct parser *parser, const char *key, const char *value, const char *no,
                         const char *yes, bool *out) {
    *out = strcmp(value, yes) == 0;
    char accepted[64];
    snprintf(accepted, sizeof accepted, "%s or %s", no, yes);
    return *out || strcmp(value, no) == 0 || fail(parser, key, value, accepted);
}

/* Keys of devices in time. */
static bool time_key(struct parser *parser, const char *key, const char *value, bool *known) {
    struct config *config = parser->config;
    uint64_t number;
    *known = true;
    if (strcmp(key, "timeline") == 0) {
        return parse_choice(parser, key, value, "off", "on", &config->timeline);
    }
    if (strcmp(key, "clock") == 0) {
        return parse_choice(parser, key, value, "real", "model", &config->model_clock);
    }
    if (strcmp(key, "seed") == 0) {
        config->seeded = true;
        return parse_number(value, 0, UINT64_MAX, &config->seed) || fail(parser, key, value, "a whole number");
    }
    if (strcmp(key, "slice-us") == 0) {
        if (!parse_number(value, 10, 1000000, &number)) {
            return fail(parser, key, value, "microseconds from 10 to 1000000");
        }
        config->slice_ns = number * 1000;
        return true;
    }
    if (strcmp(key, "noise-percent") == 0) {
        if (!parse_number(value, 0, 30, &number)) {
            return fail(parser, key, value, "a whole number from 0 to 30");
        }
        config->noise_percent = (unsigned)number;
        return true;
    }
    *known = false;
    return true;
}

static bool file_key(struct parser *parser, const char *key, const char *value) {
    struct config *config = parser->config;
    if (strcmp(key, "state") == 0) {
        char *slash = strrchr(config->path, '/');
        int directory = *value == '/' || slash == NULL ? 0 : (int)(slash - config->path) + 1;
        int length = snprintf(config->state_path, sizeof config->state_path, "%.*s%s", directory, config->path, value);
        if (*value == '\0' || length >= (int)sizeof config->state_path) {
            return fail(parser, key, value, "a path");
        }
        return true;
    }
    if (strcmp(key, "driver") == 0) {
        if (!isdigit((unsigned char)*value) || strlen(value) >= sizeof config->driver_version) {
            return fail(parser, key, value, "a driver version, such as 535.183.01");
        }
        strcpy(config->driver_version, value);
        return true;
    }
    if (strcmp(key, "cuda") == 0) {
        unsigned major, minor;
        if (!parse_pair(value, 99, &major, &minor) || major < 11) {
            return fail(parser, key, value, "MAJOR.MINOR from 11.0 on, such as 12.2");
        }
        config->cuda_version = (int)(major * 1000 + minor * 10);
        return true;
    }
    if (strcmp(key, "visible") == 0) {
        if (strlen(value) >= sizeof parser->visible) {
            return fail(parser, key, value, "at most 1023 bytes");
        }
        strcpy(parser->visible, value);
        parser->visible_line = parser->line;
        return true;
    }
    if (strcmp(key, "faults") == 0) {
        if (strlen(value) >= sizeof config->faults) {
            return fail(parser, key, value, "at most 1023 bytes");
        }
        strcpy(config->faults, value);
        return true;
    }
    bool known;
    bool good = time_key(parser, key, value, &known);
    if (known) {
        return good;
    }
    return fail(parser, key, value,
                "one of the keys state, driver, cuda, visible, faults, timeline, clock, seed, slice-us, noise-percent, "
                "or a [device] section before it");
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        text[--length] = '\0';
    }
    return text;
}

static bool parse_line(struct parser *parser, char *text) {
    text[strcspn(text, "#")] = '\0';
    text = trim(text);
    if (*text == '\0') {
        return true;
    }
    if (strcmp(text, "[device]") == 0) {
        struct config *config = parser->config;
        if (config->device_count == MAX_DEVICES) {
            message("%s:%d: more than %d devices", config->path, parser->line, MAX_DEVICES);
            return false;
        }
        parser->device = &config->device[config->device_count++];
        *parser->device = (struct device_config){.context_bytes = 100 * MIB,
                                                 .sm_count = 40,
                                                 .compute_major = 7,
                                                 .compute_minor = 5,
                                                 .clock_mhz = 1590,
                                                 .pci_device = (unsigned)config->device_count + 3,
                                                 .first_line = parser->line};
        return true;
    }
    char *equals = strchr(text, '=');
    if (equals == NULL) {
        message("%s:%d: '%s' is neither KEY = VALUE nor [device]", parser->config->path, parser->line, text);
        return false;
    }
    *equals = '\0';
    char *key = trim(text);
    char *value = trim(equals + 1);
    return parser->device != NULL ? device_key(parser, key, value) : file_key(parser, key, value);
}

static bool same_address(const struct device_config *a, const struct device_config *b) {
    return a->pci_domain == b->pci_domain && a->pci_bus == b->pci_bus && a->pci_device == b->pci_device;
}

static bool check_devices(const struct config *config) {
    for (int i = 0; i < config->device_count; i++) {
        const struct device_config *device = &config->device[i];
        const char *missing = device->name[0] == '\0'      ? "name"
                              : device->uuid[0] == '\0'    ? "uuid"
                              : device->memory_bytes == 0 ? "memory-mib"
                                                          : NULL;
        if (missing != NULL) {
            message("%s:%d: this [device] lacks %s", config->path, device->first_line, missing);
            return false;
        }
        if (device->reserved_bytes >= device->memory_bytes) {
            message("%s:%d: reserved-mib of this [device] is not less than its memory-mib", config->path,
                    device->first_line);
            return false;
        }
        for (int other = 0; other < i; other++) {
            const struct device_config *before = &config->device[other];
            bool instances = device->mig_uuid[0] != '\0' && before->mig_uuid[0] != '\0';
            const char *same = strcmp(before->uuid, device->uuid) == 0 && !instances ? "uuid"
                               : instances && strcmp(before->mig_uuid, device->mig_uuid) == 0
                                   ? "mig-uuid"
                               : same_address(before, device) && !instances ? "pci"
                                                                            : NULL;
            if (same != NULL) {
                message("%s:%d: this [device] has the %s of the one at line %d", config->path, device->first_line, same,
                        before->first_line);
                return false;
            }
        }
    }
    return true;
}

/* Keeps the devices that "visible" names, by position in the file (from 0) or UUID, in its order. */
static bool choose_visible(struct parser *parser) {
    struct config *config = parser->config;
    struct device_config chosen[MAX_DEVICES];
    int count = 0;
    char *rest = parser->visible;
    for (char *entry; (entry = strsep(&rest, ",")) != NULL;) {
        entry = trim(entry);
        if (*entry == '\0' && count == 0 && rest == NULL) {
            break; /* "visible =": a container without a card */
        }
        int found = -1;
        uint64_t position;
        for (int i = 0; i < config->device_count && found < 0; i++) {
            const struct device_config *device = &config->device[i];
            const char *uuid = device->mig_uuid[0] != '\0' ? device->mig_uuid : device->uuid;
            bool by_position = parse_number(entry, 0, MAX_DEVICES, &position) && position == (uint64_t)i;
            found = by_position || strcmp(entry, uuid) == 0 ? i : -1;
        }
        for (int i = 0; i < count && found >= 0; i++) {
            found = chosen[i].first_line == config->device[found].first_line ? -1 : found;
        }
        if (found < 0) {
            message("%s:%d: visible: '%s' is no device of this file, or named twice", config->path,
                    parser->visible_line, entry);
            return false;
        }
        chosen[count++] = config->device[found];
    }
    memcpy(config->device, chosen, sizeof chosen[0] * (size_t)count);
    config->device_count = count;
    return true;
}

static bool beside_this_library(char path[PATH_MAX]) {
    Dl_info info;
    char real[PATH_MAX];
    if (dladdr((const void *)(uintptr_t)beside_this_library, &info) == 0 || realpath(info.dli_fname, real) == NULL) {
        message("FAKEGPU_CONFIG is unset and the library's own file cannot be found");
        return false;
    }
    *strrchr(real, '/') = '\0';
    if (snprintf(path, PATH_MAX, "%s/fakegpu.conf", real) >= PATH_MAX) {
        message("FAKEGPU_CONFIG is unset and the library's own path is too long");
        return false;
    }
    return true;
}

static bool parse_file(FILE *file, struct config *config) {
    struct parser parser = {.config = config, .visible_line = 0};
    char text[2048];
    while (fgets(text, sizeof text, file) != NULL) {
        parser.line++;
        if (!parse_line(&parser, text)) {
            return false;
        }
    }
    if (config->state_path[0] == '\0') {
        message("%s: lacks state, the path of the state file", config->path);
        return false;
    }
    return check_devices(config) && (parser.visible_line == 0 || choose_visible(&parser));
}

enum config_result config_load(struct config *config) {
    *config = (struct config){.driver_version = "535.183.01", .cuda_version = 12020, .slice_ns = 2000000, .noise_percent = 5};
    const char *named = getenv("FAKEGPU_CONFIG");
    if (named != NULL && *named != '\0') {
        if (strlen(named) >= sizeof config->path) {
            message("FAKEGPU_CONFIG is longer than a path can be");
            return CONFIG_INVALID;
        }
        strcpy(config->path, named);
    } else if (!beside_this_library(config->path)) {
        return CONFIG_MISSING;
    }
    FILE *file = fopen(config->path, "re");
    if (file == NULL) {
        message("cannot read the configuration %s: %s", config->path, strerror(errno));
        return CONFIG_MISSING;
    }
    bool good = parse_file(file, config);
    fclose(file);
    const char *faults = getenv("FAKEGPU_FAULTS");
    good = good && faults_set(faults != NULL ? faults : config->faults);
    return good ? CONFIG_OK : CONFIG_INVALID;
}
