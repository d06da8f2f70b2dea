/* Allocations mapped into arrays that were made without memory of their own. */
#include "array_mapping.h"

#include "allocation.h"
#include "array.h"
#include "stream.h"

#include <stdlib.h>

/* A piece of an array, and what it is mapped to. */
struct array_mapping {
    struct array_mapping *next;
    const void *array;
    CUarrayMapInfo info;
    struct allocation *allocation;
};

static struct array_mapping *mappings;

static void drop(struct array_mapping **link) {
    struct array_mapping *gone = *link;
    *link = gone->next;
    allocation_drop_use(gone->allocation);
    free(gone);
}

void array_mapping_forget(const void *array) {
    for (struct array_mapping **link = &mappings; *link != NULL;) {
        if ((*link)->array == array) {
            drop(link);
        } else {
            link = &(*link)->next;
        }
    }
}

static bool same_piece(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
    if (a->subresourceType != b->subresourceType) {
        return false;
    }
    if (a->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        return a->subresource.miptail.layer == b->subresource.miptail.layer &&
               a->subresource.miptail.offset == b->subresource.miptail.offset;
    }
    return a->subresource.sparseLevel.level == b->subresource.sparseLevel.level &&
           a->subresource.sparseLevel.layer == b->subresource.sparseLevel.layer &&
           a->subresource.sparseLevel.offsetX == b->subresource.sparseLevel.offsetX &&
           a->subresource.sparseLevel.offsetY == b->subresource.sparseLevel.offsetY &&
           a->subresource.sparseLevel.offsetZ == b->subresource.sparseLevel.offsetZ;
}

static CUresult map_piece(const CUarrayMapInfo *info) {
    bool mipmap = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    const void *array = mipmap ? (const void *)info->resource.mipmap : (const void *)info->resource.array;
    if (!object_is(array, mipmap ? OBJECT_MIPMAP : OBJECT_ARRAY)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct array_mapping **link = &mappings;
    while (*link != NULL && ((*link)->array != array || !same_piece(&(*link)->info, info))) {
        link = &(*link)->next;
    }
    if (*link != NULL) { /* mapping again replaces */
        drop(link);
    }
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
        return CUDA_SUCCESS;
    }
    struct allocation *allocation = allocation_of(info->memHandle.memHandle);
    struct array_mapping *mapping = allocation == NULL ? NULL : malloc(sizeof *mapping);
    if (mapping == NULL) {
        return allocation == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *mapping = (struct array_mapping){
        .next = mappings, .array = array, .info = *info, .allocation = allocation};
    mappings = mapping;
    allocation_use(allocation);
    return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned int count, CUstream handle) {
    struct CUstream_st *stream;
    CUresult result = stream_enter(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (infos == NULL || count == 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = map_piece(&infos[i]);
    }
    return driver_leave(result);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *infos, unsigned int count, CUstream stream) {
    return cuMemMapArrayAsync(infos, count, per_thread(stream));
}
