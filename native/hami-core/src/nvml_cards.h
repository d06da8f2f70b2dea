/* What NVML says about the cards of this container, in NVML's order. */
#ifndef NVML_CARDS_H
#define NVML_CARDS_H

#include <stdint.h>

#include "region_layout.h"

struct nvml_card {
    char uuid[REGION_UUID_BYTES];
    uint64_t total; /* bytes, 0 where NVML does not tell */
};

/* Number of cards written, at most REGION_DEVICES; 0 where there is no NVML. Loads libnvidia-ml.so.1 if need be. */
unsigned nvml_cards(struct nvml_card cards[REGION_DEVICES]);

#endif
