/* Arrays: opaque memory for textures, with the sizes that a device gives them. The lock is held. */
#pragma once

#include "driver.h"

struct CUarray_st {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    struct CUmipmappedArray_st *mipmap; /* that it is a level of */
    size_t pitch, rows, layers;         /* as stored here */
    uint64_t bytes;                     /* what the device needs for it */
    bool charged;
    char *data;      /* mapped when first touched */
    size_t data_bytes;
};

enum {
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

/* Where a box of the array is. Invalid value if it does not lie in the array. */
CUresult array_rows(CUarray array, size_t x_bytes, size_t y, size_t z, size_t width_bytes, size_t height, size_t depth,
                    char **start, size_t *pitch, size_t *slice);

/* What mipmapped arrays need of their levels. A level is charged with the whole, and ends with it and no context. */
CUresult array_make(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *shape, bool charge, CUarray *out);
void array_destroy(void *array);
bool array_shape_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape);
bool array_has_own_memory(unsigned flags);
size_t array_halved(size_t extent, unsigned times);
CUresult array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, unsigned flags, uint64_t bytes, CUdevice dev);
CUresult array_sparse(CUDA_ARRAY_SPARSE_PROPERTIES *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels);
