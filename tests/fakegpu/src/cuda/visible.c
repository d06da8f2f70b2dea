#include "visible.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t address(const struct device_config *device) {
    return (uint64_t)device->pci_domain << 16 | device->pci_bus << 8 | device->pci_device;
}

static uint64_t speed(const struct device_config *device) { return (uint64_t)device->sm_count * device->clock_mhz; }

static bool before(const struct device_config *a, const struct device_config *b, bool by_address) {
    if (!by_address && speed(a) != speed(b)) {
        return speed(a) > speed(b);
    }
    return address(a) < address(b);
}

static bool is_mig(const struct device_config *device) { return device->mig_uuid[0] != '\0'; }

/* The position of the only device whose UUID begins so, or -1. */
static int find_uuid(const struct config *config, const char *text, size_t length) {
    bool mig = strncmp(text, "MIG-", 4) == 0;
    int found = -1;
    for (int i = 0; i < config->device_count; i++) {
        const struct device_config *device = &config->device[i];
        const char *uuid = mig ? device->mig_uuid : device->uuid;
        if (mig == is_mig(device) && strncasecmp(uuid, text, length) == 0) {
            if (found >= 0) {
                return -1;
            }
            found = i;
        }
    }
    return found;
}

static int find_entry(const struct config *config, const int *ordered, const char *text, size_t length) {
    while (length > 0 && isspace((unsigned char)*text)) {
        text++;
        length--;
    }
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        length--;
    }
    if (length > 4 && (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)) {
        return find_uuid(config, text, length);
    }
    if (length == 0 || !isdigit((unsigned char)*text)) {
        return -1;
    }
    unsigned long number = strtoul(text, NULL, 10);
    return number < (unsigned long)config->device_count ? ordered[number] : -1;
}

/* A MIG device is enumerated alone: what follows the first one is not there, nor is it behind another device. */
static int end_at_mig(const struct config *config, const int *chosen, int count) {
    for (int i = 0; i < count; i++) {
        if (is_mig(&config->device[chosen[i]])) {
            return i == 0 ? 1 : i;
        }
    }
    return count;
}

int visible_devices(const struct config *config, const char *order, const char *visible, int chosen[MAX_DEVICES]) {
    bool by_address = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
    int ordered[MAX_DEVICES];
    for (int i = 0; i < config->device_count; i++) {
        int place = i;
        while (place > 0 && before(&config->device[i], &config->device[ordered[place - 1]], by_address)) {
            ordered[place] = ordered[place - 1];
            place--;
        }
        ordered[place] = i;
    }
    if (visible == NULL) {
        memcpy(chosen, ordered, sizeof ordered);
        return end_at_mig(config, chosen, config->device_count);
    }
    int count = 0;
    for (const char *entry = visible;; entry++) {
        size_t length = strcspn(entry, ",");
        int found = find_entry(config, ordered, entry, length);
        if (found < 0) {
            break;
        }
        for (int i = 0; i < count; i++) {
            if (chosen[i] == found) {
                return 0;
            }
        }
        chosen[count++] = found;
        entry += length;
        if (*entry == '\0') {
            break;
        }
    }
    return end_at_mig(config, chosen, count);
}
