/* The configuration file: which cards this fake machine (or this container of it) has. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAX_DEVICES = 16, UUID_TEXT = 48, NAME_TEXT = 96 };

struct device_config {
    char name[NAME_TEXT];
    char uuid[UUID_TEXT];     /* "GPU-" and 36 characters */
    char mig_uuid[UUID_TEXT]; /* "MIG-" and 36 characters; empty for a whole card */
    uint64_t memory_bytes;    /* NVML's total */
    uint64_t reserved_bytes;  /* of it, what CUDA's total lacks */
    uint64_t context_bytes;   /* what one context costs */
    unsigned sm_count;
    unsigned compute_major, compute_minor;
    unsigned clock_mhz;
    unsigned pci_domain, pci_bus, pci_device;
    int first_line; /* of its section, for messages */
};

struct config {
    char path[PATH_MAX];
    char state_path[PATH_MAX];
    char driver_version[32];
    int cuda_version; /* as cuDriverGetVersion gives it: 12020 for 12.2 */
    char faults[1024]; /* as FAKEGPU_FAULTS */
    bool timeline;     /* kernels take time */
    bool model_clock;
    bool seeded;
    uint64_t seed;
    uint64_t slice_ns;
    unsigned noise_percent;
    int device_count;
    struct device_config device[MAX_DEVICES]; /* only those that this container has */
};

enum config_result { CONFIG_OK, CONFIG_MISSING, CONFIG_INVALID };

/*
 * Reads the file named by FAKEGPU_CONFIG or, when that variable is unset or empty, fakegpu.conf beside this library's
 * own file. A failure is said once on stderr.
 */
enum config_result config_load(struct config *config);
