/* Code that programs load: PTX text, or an ELF file for a device (cubin). */
#pragma once

#include "types.h"

#include <stdbool.h>
#include <stddef.h>

struct image_symbol {
    char name[256];
    bool variable;   /* else a kernel */
    size_t bytes;    /* of a variable */
};

struct image {
    size_t bytes;
    size_t count;
    struct image_symbol *symbol;
};

/* Reads what the image defines. CUDA_ERROR_INVALID_IMAGE if it is neither PTX nor a device's ELF. */
CUresult image_read(const void *data, struct image *image);
void image_free(struct image *image);
