#include "array.h"

#include "array_mapping.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Devices store arrays in blocks of 64 KiB, of tiles that are 64 bytes wide and 8 rows high. */
enum { BLOCK = 65536, TILE_BYTES = 64, TILE_ROWS = 8, KNOWN_FLAGS = 0xff };

static size_t format_bytes(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    }
    return 0;
}

static size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

bool array_shape_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    bool channels = shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4;
    size_t most = (shape->Flags & CUDA_ARRAY3D_LAYERED) != 0 ? 2048 : 16384;
    return shape->Width > 0 && shape->Width <= 131072 && shape->Height <= 65536 && shape->Depth <= most && channels &&
           format_bytes(shape->Format) != 0 && (shape->Flags & ~(unsigned)KNOWN_FLAGS) == 0;
}

static void measure(CUarray array) {
    const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
    array->pitch = shape->Width * shape->NumChannels * format_bytes(shape->Format);
    array->rows = shape->Height != 0 ? shape->Height : 1;
    array->layers = shape->Depth != 0 ? shape->Depth : 1;
    size_t tiled = array->rows == 1 ? 1 : round_up(array->rows, TILE_ROWS);
    array->data_bytes = array->pitch * array->rows * array->layers;
    array->bytes = round_up(round_up(array->pitch, TILE_BYTES) * tiled * array->layers, BLOCK);
}

bool array_has_own_memory(unsigned flags) {
    return (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

void array_destroy(void *object) {
    CUarray array = object;
    if (array->data != NULL) {
        munmap(array->data, array->data_bytes);
    }
    if (array->charged) {
        device_give(array->object.context->device, MEMORY_ARRAY, array->bytes);
    }
    array_mapping_forget(array);
    object_delete(array);
}

CUresult array_make(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *shape, bool charge, CUarray *out) {
    CUarray array = object_new(OBJECT_ARRAY, sizeof *array, context, array_destroy);
    if (array == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    array->shape = *shape;
    measure(array);
    if (charge && !device_take(context->device, MEMORY_ARRAY, array->bytes)) {
        array_destroy(array);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    array->charged = charge;
    *out = array;
    return CUDA_SUCCESS;
}

CUresult array_rows(CUarray array, size_t x_bytes, size_t y, size_t z, size_t width_bytes, size_t height, size_t depth,
                    char **start, size_t *pitch, size_t *slice) {
    if (!object_is(array, OBJECT_ARRAY) || x_bytes + width_bytes > array->pitch || y + height > array->rows ||
        z + depth > array->layers) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (array->data == NULL) {
        void *data = mmap(NULL, array->data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1, 0);
        if (data == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        array->data = data;
    }
    *pitch = array->pitch;
    *slice = array->pitch * array->rows;
    *start = array->data + z * *slice + y * *pitch + x_bytes;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL || shape == NULL || !array_shape_is_valid(shape)) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(array_make(context, shape, array_has_own_memory(shape->Flags), array));
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape) {
    if (shape == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR full = {
        .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    return cuArray3DCreate_v2(array, &full);
}

static CUresult array_enter_as(const char *call, CUarray array, const void *out) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(array, OBJECT_ARRAY)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray array) {
    CUresult result = array_enter_as(__func__, array, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array->mipmap != NULL) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE); /* it goes with its mipmapped array */
    }
    array_destroy(array);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array) {
    CUresult result = array_enter_as(__func__, array, shape);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *shape = array->shape;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array) {
    CUresult result = array_enter_as(__func__, array, shape);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *shape = (CUDA_ARRAY_DESCRIPTOR){.Width = array->shape.Width,
                                     .Height = array->shape.Height,
                                     .Format = array->shape.Format,
                                     .NumChannels = array->shape.NumChannels};
    return driver_leave(CUDA_SUCCESS);
}

size_t array_halved(size_t extent, unsigned times) {
    size_t half = extent >> times;
    return extent != 0 && half == 0 ? 1 : half;
}

/* Only arrays that were made without memory of their own tell what they need. */
CUresult array_requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, unsigned flags, uint64_t bytes, CUdevice dev) {
    if (dev < 0 || dev >= driver.device_count) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if ((flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = BLOCK};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev) {
    CUresult result = array_enter_as(__func__, array, out);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(array_requirements(out, array->shape.Flags, array->bytes, dev));
}

/* Tiles of 64 KiB; what is smaller than a tile is the tail of the mipmap. */
CUresult array_sparse(CUDA_ARRAY_SPARSE_PROPERTIES *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels) {
    if ((shape->Flags & CUDA_ARRAY3D_SPARSE) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t element = shape->NumChannels * format_bytes(shape->Format);
    unsigned width = 256, height = (unsigned)(BLOCK / 256 / element);
    *out = (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {.width = width, .height = height, .depth = 1},
                                          .miptailFirstLevel = levels,
                                          .miptailSize = 0};
    for (unsigned i = levels; i-- > 0 && (array_halved(shape->Width, i) < width || array_halved(shape->Height, i) < height);) {
        out->miptailFirstLevel = i;
        out->miptailSize = BLOCK;
    }
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array) {
    CUresult result = array_enter_as(__func__, array, out);
    return result != CUDA_SUCCESS ? result : driver_leave(array_sparse(out, &array->shape, 1));
}

CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int index) {
    CUresult result = array_enter_as(__func__, array, plane);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    (void)index; /* no format here has planes */
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
}
