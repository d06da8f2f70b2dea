#include "environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "memory_size.h"
#include "message.h"

enum { NAME_BYTES = 48 };

static const char *non_empty(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static enum size_reading read_size(const char *name, uint64_t *bytes)
{
    const char *value = getenv(name);
    return value ? memory_size_parse(span_of(value), bytes) : SIZE_NONE;
}

/* HAMi-core takes `30%` as 30. */
static enum size_reading read_percent(const char *name, uint64_t *percent)
{
    const char *value = getenv(name);
    if (!value)
        return SIZE_NONE;
    struct span text = span_trim(span_of(value));
    if (text.length > 1 && text.start[text.length - 1] == '%')
        text.length--;
    return memory_size_parse(text, percent);
}

typedef enum size_reading reader(const char *name, uint64_t *value);

static void explain(char *reason, const char *name, const char *accepted)
{
    snprintf(reason, REASON_BYTES, "%s=%.64s: accepted is %s", name, getenv(name), accepted);
}

/* HAMi: the value for the device wins if it is above 0, else the common one counts. */
static bool read_pair(const char *common, unsigned device, reader *read, const char *accepted, uint64_t none, uint64_t *value,
                      char *reason)
{
    char own[NAME_BYTES];
    snprintf(own, sizeof(own), "%s_%u", common, device);
    enum size_reading own_reading = read(own, value);
    if (own_reading == SIZE_BYTES)
        return true;
    enum size_reading common_reading = read(common, value);
    if (own_reading == SIZE_INVALID || common_reading == SIZE_INVALID)
        explain(reason, own_reading == SIZE_INVALID ? own : common, accepted);
    if (common_reading == SIZE_BYTES) {
        if (own_reading == SIZE_INVALID)
            message(MESSAGE_WARNING, "%s; %s=%.64s is used instead", reason, common, getenv(common));
        return true;
    }
    *value = none;
    return own_reading == SIZE_NONE && common_reading == SIZE_NONE;
}

bool environment_memory_limit(unsigned device, uint64_t *bytes, char *reason)
{
    return read_pair("CUDA_DEVICE_MEMORY_LIMIT", device, read_size, SIZE_ACCEPTED, LIMIT_NONE, bytes, reason);
}

bool environment_cores(unsigned device, uint64_t *percent, char *reason)
{
    return read_pair("CUDA_DEVICE_SM_LIMIT", device, read_percent, "a whole number of percent", 100, percent, reason);
}

bool environment_own_limit(uint64_t *bytes, char *reason)
{
    static const char name[] = "ISOLATOR_MEMORY_LIMIT";
    enum size_reading reading = read_size(name, bytes);
    if (reading == SIZE_NONE)
        *bytes = LIMIT_NONE;
    if (reading == SIZE_INVALID)
        explain(reason, name, SIZE_ACCEPTED);
    return reading != SIZE_INVALID;
}

enum cores_policy environment_cores_policy(void)
{
    const char *value = getenv("GPU_CORE_UTILIZATION_POLICY");
    if (value && (strcmp(value, "FORCE") == 0 || strcmp(value, "force") == 0))
        return CORES_ALWAYS;
    if (value && (strcmp(value, "DISABLE") == 0 || strcmp(value, "disable") == 0))
        return CORES_NEVER;
    return CORES_BY_MONITOR;
}

int environment_priority(void)
{
    const char *value = non_empty("CUDA_TASK_PRIORITY");
    return value ? (int)strtoull(value, NULL, 10) : 1;
}

bool environment_region_path(char *path, size_t bytes, bool *derived)
{
    const char *verbatim = non_empty("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    const char *mount = non_empty("CONTAINER_VGPU_MOUNT"), *uid = non_empty("POD_UID"), *name = non_empty("CONTAINER_NAME");
    int length;

    *derived = !verbatim && uid && name;
    if (*derived)
        length = snprintf(path, bytes, "%s/containers/%s_%s/usage.cache", mount ? mount : "/usr/local/vgpu", uid, name);
    else
        length = snprintf(path, bytes, "%s", verbatim ? verbatim : REGION_FALLBACK);
    return length >= 0 && (size_t)length < bytes;
}
