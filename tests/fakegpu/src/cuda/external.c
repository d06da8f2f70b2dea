/* Memory imported from another API: here, the descriptors that cuMemExportToShareableHandle gives. Never charged. */
#include "external.h"

#include "allocation.h"
#include "ranges.h"

#include <sys/mman.h>

struct CUextMemory_st {
    struct object object;
    struct allocation *memory;
};

static void destroy(void *object) {
    CUexternalMemory external = object;
    allocation_drop_use(external->memory);
    object_delete(external);
}

CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    struct CUctx_st *context;
    CUresult result = context_enter_unsafe(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || description == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
        return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    CUexternalMemory external = object_new(OBJECT_EXTERNAL_MEMORY, sizeof *external, context, destroy);
    struct allocation *memory = external == NULL ? NULL : allocation_import(description->handle.fd);
    if (memory == NULL || description->size > memory->bytes) {
        if (external != NULL) {
            object_delete(external);
        }
        return driver_leave(external == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
    }
    allocation_use(memory); /* instead of a handle, that nobody could release */
    memory->handles--;
    external->memory = memory;
    *out = external;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDestroyExternalMemory(CUexternalMemory external) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(external, OBJECT_EXTERNAL_MEMORY)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    destroy(external);
    return driver_leave(CUDA_SUCCESS);
}

void external_unmap(struct range *range) {
    struct allocation *memory = range->owner;
    munmap((void *)range->start, range->bytes);
    range_remove(range);
    allocation_drop_use(memory);
}

/* The buffer ends by cuMemFree, or with its context. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory external,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
    enum { PAGE = 4096 };
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || description == NULL || !object_is(external, OBJECT_EXTERNAL_MEMORY) ||
        description->size == 0 || description->offset % PAGE != 0 ||
        description->offset + description->size > external->memory->bytes) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct allocation *memory = external->memory;
    void *pages = mmap(NULL, description->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd,
                       (off_t)(memory->offset + description->offset));
    if (pages == MAP_FAILED) {
        return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
    }
    struct range *range = range_add((struct range){.start = (uintptr_t)pages,
                                                   .bytes = description->size,
                                                   .kind = RANGE_EXTERNAL,
                                                   .device = memory->device,
                                                   .context = external->object.context,
                                                   .owner = memory,
                                                   .reachable = true,
                                                   .writable = true});
    if (range == NULL) {
        munmap(pages, description->size);
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    allocation_use(memory);
    *address = range->start;
    return driver_leave(CUDA_SUCCESS);
}
