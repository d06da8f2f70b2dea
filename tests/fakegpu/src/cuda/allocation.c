#include "allocation.h"

#include "multicast.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Data of what cannot be shared: one file without a name for the whole process, of which each has a piece of its own. */
static int data_fd = -1;
static uint64_t data_end;

static struct allocation **table; /* by handle, from 1 on */
static size_t table_count;
static struct allocation *shareables; /* made or imported by this process */

static bool take_data(struct allocation *allocation) {
    if (data_fd < 0) {
        /* The function is not in glibc before 2.27. */
        data_fd = (int)syscall(SYS_memfd_create, "fakegpu", 1u /* MFD_CLOEXEC */);
    }
    if (data_fd < 0 || ftruncate(data_fd, (off_t)(data_end + allocation->bytes)) != 0) {
        return false;
    }
    allocation->fd = data_fd;
    allocation->offset = data_end;
    data_end += allocation->bytes;
    return true;
}

static void give_data(const struct allocation *allocation) {
    fallocate(data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)allocation->offset,
              (off_t)allocation->bytes);
}

static void note_shareable(struct allocation *allocation) {
    allocation->next_shareable = shareables;
    shareables = allocation;
}

static struct allocation *find_shared(uint64_t id) {
    struct allocation *allocation = shareables;
    while (allocation != NULL && allocation->shared.id != id) {
        allocation = allocation->next_shareable;
    }
    return allocation;
}

static void forget_shareable(const struct allocation *allocation) {
    struct allocation **link = &shareables;
    while (*link != allocation) {
        link = &(*link)->next_shareable;
    }
    *link = allocation->next_shareable;
}

struct allocation *allocation_of(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation = handle - 1 < table_count ? table[handle - 1] : NULL;
    return allocation != NULL && allocation->handles > 0 ? allocation : NULL;
}

/* With one handle, whose value is its place in the table. */
static struct allocation *new_allocation(struct device *device, uint64_t bytes) {
    size_t place = 0;
    while (place < table_count && table[place] != NULL) {
        place++;
    }
    if (place == table_count) {
        size_t more = 2 * table_count + 64;
        struct allocation **grown = realloc(table, more * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        memset(grown + table_count, 0, (more - table_count) * sizeof *grown);
        table = grown;
        table_count = more;
    }
    struct allocation *allocation = object_new(OBJECT_ALLOCATION, sizeof *allocation, NULL, NULL);
    if (allocation != NULL) {
        allocation->device = device;
        allocation->bytes = bytes;
        allocation->handle = place + 1;
        allocation->handles = 1;
        table[place] = allocation;
    }
    return allocation;
}

static void delete_allocation(struct allocation *allocation) {
    table[allocation->handle - 1] = NULL;
    object_delete(allocation);
}

static void end_if_unused(struct allocation *allocation) {
    if (allocation->handles > 0 || allocation->uses > 0) {
        return;
    }
    if (allocation->multicast != NULL) {
        multicast_end(allocation->multicast);
    }
    if (allocation->shareable) {
        if (allocation->own) {
            shared_disown(&driver.attachment, allocation->device->state_index, MEMORY_VIRTUAL, allocation->bytes);
        }
        close(allocation->fd);
        forget_shareable(allocation);
    } else {
        give_data(allocation);
        if (allocation->device != NULL) {
            device_give(allocation->device, MEMORY_VIRTUAL, allocation->bytes);
        }
    }
    delete_allocation(allocation);
}

void allocation_use(struct allocation *allocation) { allocation->uses++; }

void allocation_drop_use(struct allocation *allocation) {
    allocation->uses--;
    end_if_unused(allocation);
}

static CUresult make_private(struct allocation *allocation) {
    if (allocation->device != NULL && !device_take(allocation->device, MEMORY_VIRTUAL, allocation->bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!take_data(allocation)) {
        if (allocation->device != NULL) {
            device_give(allocation->device, MEMORY_VIRTUAL, allocation->bytes);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult make_shareable(struct allocation *allocation) {
    allocation->fd = shared_make(&driver.attachment, allocation->device->state_index, MEMORY_VIRTUAL,
                                 allocation->bytes, &allocation->shared);
    if (allocation->fd < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->shareable = allocation->own = true;
    note_shareable(allocation);
    return CUDA_SUCCESS;
}

static CUresult check_prop(const CUmemAllocationProp *prop, size_t bytes) {
    if (prop == NULL || bytes == 0 || bytes % ARENA_UNIT != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    bool host = prop->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
                prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    if (!device && !host) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device && (prop->location.id < 0 || prop->location.id >= driver.device_count)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    bool plain = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
    bool descriptor = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return plain || (descriptor && device) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    CUresult result = driver_enter_unsafe();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = handle == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : check_prop(prop, bytes);
    if (result != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct allocation *allocation = new_allocation(device ? &driver.device[prop->location.id] : NULL, bytes);
    if (allocation == NULL) {
        return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    allocation->prop = *prop;
    bool plain = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE;
    result = plain ? make_private(allocation) : make_shareable(allocation);
    if (result != CUDA_SUCCESS) {
        delete_allocation(allocation);
        return driver_leave(result);
    }
    *handle = allocation->handle;
    return driver_leave(CUDA_SUCCESS);
}

struct allocation *allocation_make_costless(uint64_t bytes) {
    struct allocation *allocation = new_allocation(NULL, bytes);
    if (allocation != NULL && !take_data(allocation)) {
        delete_allocation(allocation);
        return NULL;
    }
    return allocation;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult result = driver_enter_unsafe();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = allocation_of(handle);
    if (allocation == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    allocation->handles--;
    end_if_unused(allocation);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (granularity == NULL || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = check_prop(prop, ARENA_UNIT);
    if (result == CUDA_SUCCESS) {
        *granularity = ARENA_UNIT;
    }
    return driver_leave(result);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = allocation_of(handle);
    if (allocation == NULL || prop == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *prop = allocation->prop;
    return driver_leave(CUDA_SUCCESS);
}

/* The descriptor is a reference of its own: it keeps the memory until it is closed everywhere. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct allocation *allocation = allocation_of(handle);
    if (allocation == NULL || shareable == NULL || flags != 0 || !allocation->shareable ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
    }
    *(int *)shareable = fd;
    return driver_leave(CUDA_SUCCESS);
}

struct allocation *allocation_import(int fd) {
    struct shared shared;
    if (!shared_identify(&driver.attachment, fd, &shared)) {
        return NULL;
    }
    struct allocation *allocation = find_shared(shared.id);
    if (allocation != NULL) {
        allocation->handles++;
        return allocation;
    }
    struct device *device = NULL;
    for (int i = 0; i < driver.device_count; i++) {
        if (driver.device[i].state_index == shared.device) {
            device = &driver.device[i];
        }
    }
    int own_fd = device == NULL ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    allocation = own_fd < 0 ? NULL : new_allocation(device, shared.bytes);
    if (allocation == NULL) {
        return NULL;
    }
    allocation->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, device_ordinal(device)}};
    allocation->fd = own_fd;
    allocation->shareable = true;
    allocation->shared = shared;
    note_shareable(allocation);
    return allocation;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    struct allocation *allocation = allocation_import((int)(intptr_t)shareable);
    if (allocation == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *handle = allocation->handle;
    return driver_leave(CUDA_SUCCESS);
}
