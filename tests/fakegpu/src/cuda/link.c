/* The linker: puts PTX texts together, or passes one image on. There is no compiler behind it. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

struct CUlinkState_st {
    struct object object;
    char *data;
    size_t bytes, inputs;
    bool binary;
};

static void destroy(void *object) {
    CUlinkState link = object;
    free(link->data);
    object_delete(link);
}

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *out) {
    (void)count;
    (void)options;
    (void)values;
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUlinkState link = out == NULL ? NULL : object_new(OBJECT_LINK, sizeof *link, context, destroy);
    if (link == NULL) {
        return driver_leave(out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY);
    }
    *out = link;
    return driver_leave(CUDA_SUCCESS);
}

static CUresult add(CUlinkState link, CUjitInputType type, const void *data, size_t bytes) {
    if (!object_is(link, OBJECT_LINK)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (data == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool text = type == CU_JIT_INPUT_PTX;
    if ((!text && type != CU_JIT_INPUT_CUBIN) || (link->inputs > 0 && (link->binary || !text))) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    size_t used = text ? strnlen(data, bytes) : bytes;
    char *grown = realloc(link->data, link->bytes + used + 64);
    if (grown == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(grown + link->bytes, data, used);
    memset(grown + link->bytes + used, 0, 64);
    link->data = grown;
    link->bytes += used;
    link->inputs++;
    link->binary = !text;
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState link, CUjitInputType type, void *data, size_t bytes, const char *name,
                          unsigned int count, CUjit_option *options, void **values) {
    (void)name;
    (void)count;
    (void)options;
    (void)values;
    CUresult result = driver_enter();
    return result != CUDA_SUCCESS ? result : driver_leave(add(link, type, data, bytes));
}

CUresult cuLinkComplete(CUlinkState link, void **image, size_t *bytes) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(link, OBJECT_LINK)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (image == NULL || link->data == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *image = link->data;
    if (bytes != NULL) {
        *bytes = link->bytes;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuLinkDestroy(CUlinkState link) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(link, OBJECT_LINK)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    destroy(link);
    return driver_leave(CUDA_SUCCESS);
}
