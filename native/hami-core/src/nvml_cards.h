/* What NVML says about the cards of this container, in NVML's order. */
#ifndef NVML_CARDS_H
#define NVML_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "region_layout.h"

struct nvml_card {
    char uuid[REGION_UUID_BYTES];
    uint64_t total; /* bytes, 0 where NVML does not tell */
};

/* Number of cards written, at most REGION_DEVICES; 0 where there is no NVML. Loads libnvidia-ml.so.1 if need be. */
unsigned nvml_cards(struct nvml_card cards[REGION_DEVICES]);

/* Bytes that NVML books for the process of this PID, as the node counts PIDs, on a card. False: it does not tell. */
bool nvml_process_memory(const char *uuid, uint32_t pid, uint64_t *bytes);

#endif
