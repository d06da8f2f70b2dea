#include "../common/faults.h"
#include "nvml.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct nvml nvml;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint users;
static bool loaded; /* once, for the life of the process: the state's lock file must never be closed */

static bool before(const struct device_config *a, const struct device_config *b) {
    if (a->pci_domain != b->pci_domain) {
        return a->pci_domain < b->pci_domain;
    }
    return a->pci_bus != b->pci_bus ? a->pci_bus < b->pci_bus : a->pci_device < b->pci_device;
}

static struct nvmlDevice_st *card_of(const struct device_config *config) {
    for (unsigned i = 0; i < nvml.cards; i++) {
        if (strcmp(nvml.card[i].config->uuid, config->uuid) == 0) {
            return &nvml.card[i];
        }
    }
    nvml.card[nvml.cards] = (struct nvmlDevice_st){.config = config, .index = nvml.cards};
    return &nvml.card[nvml.cards++];
}

/* Cards in the order of their PCI addresses, each with its instances. */
static void make_devices(void) {
    int ordered[MAX_DEVICES];
    for (int i = 0; i < nvml.config.device_count; i++) {
        int place = i;
        while (place > 0 && before(&nvml.config.device[i], &nvml.config.device[ordered[place - 1]])) {
            ordered[place] = ordered[place - 1];
            place--;
        }
        ordered[place] = i;
    }
    for (int i = 0; i < nvml.config.device_count; i++) {
        const struct device_config *config = &nvml.config.device[ordered[i]];
        struct nvmlDevice_st *card = card_of(config);
        int state_index = nvml.attachment.device_index[ordered[i]];
        if (config->mig_uuid[0] != '\0') {
            card->divided = true;
            nvml.instance[nvml.instances++] = (struct nvmlDevice_st){.config = config,
                                                                     .parent = card,
                                                                     .index = (unsigned)card->parts,
                                                                     .parts = 1,
                                                                     .state_index = {state_index}};
        }
        card->state_index[card->parts++] = state_index;
    }
}

static nvmlReturn_t load(void) {
    switch (config_load(&nvml.config)) {
    case CONFIG_MISSING:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case CONFIG_INVALID:
        return NVML_ERROR_UNKNOWN;
    case CONFIG_OK:
        break;
    }
    if (!state_open(&nvml.attachment, &nvml.config) ||
        !timeline_open(&nvml.timeline, &nvml.config, &nvml.attachment)) {
        return NVML_ERROR_OPERATING_SYSTEM;
    }
    make_devices();
    loaded = true;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags; /* they only tell what to do on a machine without cards, which is no error here */
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = loaded ? NVML_SUCCESS : load();
    if (result == NVML_SUCCESS) {
        atomic_fetch_add(&users, 1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = atomic_load(&users) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS) {
        atomic_fetch_sub(&users, 1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvml_ready_as(const char *call, const void *out) {
    if (atomic_load(&users) == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t fault = (nvmlReturn_t)fault_of(call);
    return fault == NVML_SUCCESS && out == NULL ? NVML_ERROR_INVALID_ARGUMENT : fault;
}

nvmlReturn_t nvml_check_as(const char *call, nvmlDevice_t device, const void *out) {
    nvmlReturn_t result = nvml_ready_as(call, out);
    bool card = device >= nvml.card && device < nvml.card + nvml.cards;
    bool instance = device >= nvml.instance && device < nvml.instance + nvml.instances;
    return result == NVML_SUCCESS && !card && !instance ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t nvml_text(char *out, unsigned length, const char *text) {
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(out, text);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
#define ERROR(code, name, text)                                                                                        \
    case NVML_##name:                                                                                                  \
        return text;
#include "errors.def"
#undef ERROR
    }
    return "Unknown Error";
}
