/* Mipmapped arrays: levels that halve down, in one allocation. */
#include "array.h"
#include "array_mapping.h"

#include <stdlib.h>

struct CUmipmappedArray_st {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    unsigned levels;
    CUarray *level;
    uint64_t bytes;
    bool charged;
};

static void destroy_mipmap(void *object) {
    CUmipmappedArray mipmap = object;
    for (unsigned i = 0; i < mipmap->levels; i++) {
        if (mipmap->level[i] != NULL) {
            array_destroy(mipmap->level[i]);
        }
    }
    if (mipmap->charged) {
        device_give(mipmap->object.context->device, MEMORY_ARRAY, mipmap->bytes);
    }
    array_mapping_forget(mipmap);
    free(mipmap->level);
    object_delete(mipmap);
}

static CUresult make_levels(CUmipmappedArray mipmap) {
    for (unsigned i = 0; i < mipmap->levels; i++) {
        CUDA_ARRAY3D_DESCRIPTOR shape = mipmap->shape;
        shape.Width = array_halved(shape.Width, i);
        shape.Height = array_halved(shape.Height, i);
        if ((shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0) {
            shape.Depth = array_halved(shape.Depth, i);
        }
        CUresult result = array_make(NULL, &shape, false, &mipmap->level[i]);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        mipmap->level[i]->mipmap = mipmap;
        mipmap->bytes += mipmap->level[i]->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels) {
    enum { MOST_LEVELS = 18 };
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || shape == NULL || !array_shape_is_valid(shape) || levels == 0 || levels > MOST_LEVELS) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    CUmipmappedArray mipmap = object_new(OBJECT_MIPMAP, sizeof *mipmap, context, destroy_mipmap);
    if (mipmap == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    mipmap->shape = *shape;
    mipmap->level = calloc(levels, sizeof(CUarray));
    mipmap->levels = mipmap->level != NULL ? levels : 0;
    result = mipmap->level != NULL ? make_levels(mipmap) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && array_has_own_memory(shape->Flags)) {
        mipmap->charged = device_take(context->device, MEMORY_ARRAY, mipmap->bytes);
        result = mipmap->charged ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        destroy_mipmap(mipmap);
        return driver_leave(result);
    }
    *out = mipmap;
    return driver_leave(CUDA_SUCCESS);
}

static CUresult mipmap_enter_as(const char *call, CUmipmappedArray mipmap, const void *out) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(mipmap, OBJECT_MIPMAP)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    CUresult result = mipmap_enter_as(__func__, mipmap, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    destroy_mipmap(mipmap);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level) {
    CUresult result = mipmap_enter_as(__func__, mipmap, array);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (level >= mipmap->levels) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *array = mipmap->level[level];
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray mipmap,
                                               CUdevice dev) {
    CUresult result = mipmap_enter_as(__func__, mipmap, out);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(array_requirements(out, mipmap->shape.Flags, mipmap->bytes, dev));
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUmipmappedArray mipmap) {
    CUresult result = mipmap_enter_as(__func__, mipmap, out);
    return result != CUDA_SUCCESS ? result : driver_leave(array_sparse(out, &mipmap->shape, mipmap->levels));
}
