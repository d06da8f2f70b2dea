/* What the files of this NVML share. */
#pragma once

#include "../common/config.h"
#include "../common/state.h"
#include "../common/timeline.h"
#include "prototypes.h"

#include <stdbool.h>

/* A card or a MIG instance. A card that is divided has no memory of its own: it is the sum of its instances. */
struct nvmlDevice_st {
    const struct device_config *config;
    struct nvmlDevice_st *parent; /* of a MIG instance */
    unsigned index;               /* among the cards, or among the instances of its card */
    int parts;                    /* entries of the state that this device is made of */
    int state_index[MAX_DEVICES];
    bool divided; /* into MIG instances */
};

struct nvml {
    struct config config;
    struct attachment attachment;
    struct timeline timeline;
    struct nvmlDevice_st card[MAX_DEVICES], instance[MAX_DEVICES];
    unsigned cards, instances;
};

extern struct nvml nvml;

/*
 * How a call begins: NVML_ERROR_UNINITIALIZED outside of nvmlInit and nvmlShutdown, a fault that it was told to answer
 * with, invalid argument if out is NULL or the handle is none of ours.
 */
#define nvml_ready(out) nvml_ready_as(__func__, out)
#define nvml_check(device, out) nvml_check_as(__func__, device, out)
nvmlReturn_t nvml_ready_as(const char *call, const void *out);
nvmlReturn_t nvml_check_as(const char *call, nvmlDevice_t device, const void *out);

/* Copies text with its end; NVML_ERROR_INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t nvml_text(char *out, unsigned length, const char *text);
