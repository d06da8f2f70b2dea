#include "request.h"

#include <stdio.h>
#include <string.h>

enum key { KEY_CONTAINER, KEY_MEMORY, KEY_FRACTION, KEY_AT_MOST, KEY_DEVICES, KEY_CORES, KEY_PRIORITY, KEY_REGION, KEYS };

static const struct {
    const char *name;
    const char *accepted;
} keys[KEYS] = {
    [KEY_CONTAINER] = {"container", "a container's name"},
    [KEY_MEMORY] = {"memory", "MiB with the suffix m, such as 4096m, or none"},
    [KEY_FRACTION] = {"fraction", "a decimal above 0 and at most 1, such as 0.25"},
    [KEY_AT_MOST] = {"at-most", "MiB with the suffix m, such as 4096m"},
    [KEY_DEVICES] = {"devices", "a whole number from 1"},
    [KEY_CORES] = {"cores", "percent, 1 to 100"},
    [KEY_PRIORITY] = {"priority", "0 or 1"},
    [KEY_REGION] = {"region", "emptyDir or hostPath"},
};

static bool parse_mib(struct span value, uint64_t *mib)
{
    if (value.length < 2 || value.start[value.length - 1] != 'm')
        return false;
    value.length--;
    return span_unsigned(value, mib) && *mib > 0 && *mib <= UINT64_MAX / MIB;
}

/* The name becomes part of a path. */
static bool parse_container(struct span value, char *name)
{
    for (size_t i = 0; i < value.length; i++) {
        char c = value.start[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'))
            return false;
    }
    return value.length > 0 && span_copy(value, name, CONTAINER_NAME_BYTES);
}

static bool parse_range(struct span value, uint64_t low, uint64_t high, uint64_t *number)
{
    return span_unsigned(value, number) && *number >= low && *number <= high;
}

static bool parse_value(enum key key, struct span value, struct request *request)
{
    switch (key) {
    case KEY_CONTAINER: return parse_container(value, request->container);
    case KEY_MEMORY:
        request->kind = span_is(value, "none") ? MEMORY_NONE : MEMORY_MIB;
        return request->kind == MEMORY_NONE || parse_mib(value, &request->memory_mib);
    case KEY_FRACTION: request->kind = MEMORY_FRACTION; return fraction_parse(value, &request->fraction);
    case KEY_AT_MOST: return parse_mib(value, &request->at_most_mib);
    case KEY_DEVICES: return parse_range(value, 1, UINT64_MAX, &request->devices);
    case KEY_CORES: return parse_range(value, 1, 100, &request->cores);
    case KEY_PRIORITY: return parse_range(value, 0, 1, &request->priority);
    case KEY_REGION: request->region_is_mounted = span_is(value, "hostPath"); return request->region_is_mounted || span_is(value, "emptyDir");
    case KEYS: break;
    }
    return false;
}

static enum key key_named(struct span name)
{
    unsigned key = 0;
    while (key < KEYS && !span_is(name, keys[key].name))
        key++;
    return (enum key)key;
}

bool request_parse(struct span text, struct request *request, char *reason)
{
    bool given[KEYS] = {false};

    *request = (struct request){.devices = 1, .cores = 100, .priority = 1};
    while (text.length > 0) {
        struct span line = span_trim(span_cut(&text, '\n'));
        if (line.length == 0)
            continue;
        int shown = line.length < 80 ? (int)line.length : 80;
        if (!memchr(line.start, '=', line.length)) {
            snprintf(reason, REASON_BYTES, "line \"%.*s\": accepted is key=value", shown, line.start);
            return false;
        }
        struct span value = line, name = span_cut(&value, '=');
        enum key key = key_named(name);
        if (key == KEYS) {
            if (!request->unknown_key[0])
                snprintf(request->unknown_key, sizeof(request->unknown_key), "%.*s",
                         name.length < 31 ? (int)name.length : 31, name.start);
            continue;
        }
        if (given[key]) {
            snprintf(reason, REASON_BYTES, "%s is given twice", keys[key].name);
            return false;
        }
        given[key] = true;
        if (!parse_value(key, value, request)) {
            snprintf(reason, REASON_BYTES, "%.*s: accepted is %s", shown, line.start, keys[key].accepted);
            return false;
        }
    }
    if (!given[KEY_CONTAINER]) {
        snprintf(reason, REASON_BYTES, "container is missing");
        return false;
    }
    if (given[KEY_MEMORY] == given[KEY_FRACTION]) {
        snprintf(reason, REASON_BYTES, "%s", given[KEY_MEMORY] ? "memory and fraction are both given, one is accepted"
                                                               : "neither memory nor fraction is given");
        return false;
    }
    return true;
}
