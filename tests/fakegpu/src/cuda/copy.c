#include "copy.h"

#include "address.h"
#include "array.h"
#include "driver.h"

#include <string.h>

/* One side of a copy: rows of a block of memory or of an array. */
struct side {
    char *start;
    size_t pitch, slice; /* bytes from row to row and from layer to layer */
};

static CUresult memory_side(CUmemorytype type, const void *host, CUdeviceptr address, size_t offset, size_t extent,
                            bool write, struct side *side) {
    void *at = (char *)(uintptr_t)host + offset;
    if (type == CU_MEMORYTYPE_UNIFIED) {
        struct address found;
        bool known = address_find((uintptr_t)address + offset, &found);
        type = known ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        at = (char *)(uintptr_t)address + offset;
    }
    if (type == CU_MEMORYTYPE_DEVICE) {
        CUresult result = memory_at(address + offset, extent, write, &at);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    side->start = at;
    return at == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Bytes from the first one that a copy touches to behind its last one. */
static size_t span(const CUDA_MEMCPY3D *copy, const struct side *side) {
    return (copy->Depth - 1) * side->slice + (copy->Height - 1) * side->pitch + copy->WidthInBytes;
}

static CUresult source_of(const CUDA_MEMCPY3D *copy, struct side *side) {
    size_t rows = copy->srcHeight != 0 ? copy->srcHeight : copy->srcY + copy->Height;
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY) {
        return array_rows(copy->srcArray, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->WidthInBytes, copy->Height,
                          copy->Depth, &side->start, &side->pitch, &side->slice);
    }
    side->pitch = copy->srcPitch != 0 ? copy->srcPitch : copy->srcXInBytes + copy->WidthInBytes;
    side->slice = side->pitch * rows;
    size_t offset = copy->srcZ * side->slice + copy->srcY * side->pitch + copy->srcXInBytes;
    return memory_side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, offset, span(copy, side), false, side);
}

static CUresult target_of(const CUDA_MEMCPY3D *copy, struct side *side) {
    size_t rows = copy->dstHeight != 0 ? copy->dstHeight : copy->dstY + copy->Height;
    if (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        return array_rows(copy->dstArray, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->WidthInBytes, copy->Height,
                          copy->Depth, &side->start, &side->pitch, &side->slice);
    }
    side->pitch = copy->dstPitch != 0 ? copy->dstPitch : copy->dstXInBytes + copy->WidthInBytes;
    side->slice = side->pitch * rows;
    size_t offset = copy->dstZ * side->slice + copy->dstY * side->pitch + copy->dstXInBytes;
    return memory_side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, offset, span(copy, side), true, side);
}

CUresult copy_run(const CUDA_MEMCPY3D *copy) {
    if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0) {
        return CUDA_SUCCESS;
    }
    struct side from, to;
    CUresult result = source_of(copy, &from);
    if (result == CUDA_SUCCESS) {
        result = target_of(copy, &to);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t z = 0; z < copy->Depth; z++) {
        for (size_t y = 0; y < copy->Height; y++) {
            memmove(to.start + z * to.slice + y * to.pitch, from.start + z * from.slice + y * from.pitch,
                    copy->WidthInBytes);
        }
    }
    return CUDA_SUCCESS;
}

CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS_v2 *fill) {
    size_t row = fill->width * fill->elementSize;
    if (fill->dst % fill->elementSize != 0 || (fill->height > 1 && fill->pitch < row)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (row == 0 || fill->height == 0) {
        return CUDA_SUCCESS;
    }
    char *start;
    CUresult result = memory_at(fill->dst, (fill->height - 1) * fill->pitch + row, true, (void **)&start);
    for (size_t y = 0; y < fill->height && result == CUDA_SUCCESS; y++) {
        char *to = start + y * fill->pitch;
        if (fill->elementSize == 1) {
            memset(to, (int)fill->value, row);
            continue;
        }
        for (size_t x = 0; x < fill->width; x++) {
            memcpy(to + x * fill->elementSize, &fill->value, fill->elementSize); /* little-endian */
        }
    }
    return result;
}
