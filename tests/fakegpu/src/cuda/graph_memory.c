/*
 * The memory of graph allocation nodes: a pool a device and process. A node has its address for life; backing is taken
 * when a graph that allocates is launched, and is kept when it is freed until cuDeviceGraphMemTrim.
 */
#include "address.h"
#include "capture.h"
#include "graph.h"

#include <stdlib.h>

/* Addresses cost nothing, so there are always more of them. */
struct graph_addresses {
    struct graph_addresses *next;
    struct arena arena;
};

struct backing {
    struct backing *next;
    struct arena *arena;
    CUdeviceptr address;
    uint64_t bytes;
    unsigned holders; /* the node, and what was instantiated with it */
    bool in_use;      /* memory outlives its holders until the program frees it */
};

static struct backing *backings;

static bool costs_nothing(struct arena *arena, uint64_t bytes) {
    (void)arena;
    (void)bytes;
    return true;
}

static void gives_nothing(struct arena *arena, uint64_t bytes) {
    (void)arena;
    (void)bytes;
}

static bool add_addresses(struct device *device) {
    struct graph_addresses *more = calloc(1, sizeof *more);
    if (more == NULL) {
        return false;
    }
    more->arena = (struct arena){.kind = ARENA_GRAPH, .device = device, .take = costs_nothing, .give = gives_nothing};
    if (!arena_open(&more->arena, 4 * device_capacity(device))) {
        free(more);
        return false;
    }
    more->next = device->graph_memory.addresses;
    device->graph_memory.addresses = more;
    return true;
}

static bool take_address(struct device *device, size_t bytes, struct backing *backing) {
    struct graph_addresses *from = device->graph_memory.addresses;
    for (; from != NULL; from = from->next) {
        backing->arena = &from->arena;
        backing->address = arena_take(&from->arena, NULL, bytes);
        if (backing->address != 0) {
            return true;
        }
    }
    return false;
}

CUresult graph_memory_reserve_address(struct device *device, size_t bytes, CUdeviceptr *address) {
    struct backing *backing = calloc(1, sizeof *backing);
    if (backing == NULL || bytes > device_capacity(device) ||
        !(take_address(device, bytes, backing) ||
          (add_addresses(device) && take_address(device, bytes, backing)))) {
        free(backing);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    backing->bytes = (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
    backing->holders = 1;
    backing->next = backings;
    *address = backing->address;
    backings = backing;
    return CUDA_SUCCESS;
}

static struct backing **find(CUdeviceptr address) {
    struct backing **link = &backings;
    while (*link != NULL && (*link)->address != address) {
        link = &(*link)->next;
    }
    return link;
}

static struct device *device_of(CUdeviceptr address) {
    struct address found;
    return address_find((uintptr_t)address, &found) ? found.device : NULL;
}

static void remove_backing(struct backing **link) {
    struct backing *gone = *link;
    *link = gone->next;
    arena_give(gone->arena, (uintptr_t)gone->address);
    free(gone);
}

void graph_memory_hold(CUdeviceptr address) { (*find(address))->holders++; }

void graph_memory_drop(CUdeviceptr address) {
    struct backing **link = find(address);
    (*link)->holders--;
    if ((*link)->holders == 0 && !(*link)->in_use) {
        remove_backing(link);
    }
}

bool graph_memory_in_use(CUdeviceptr address) {
    struct backing *backing = *find(address);
    return backing != NULL && backing->in_use;
}

CUresult graph_memory_take(CUdeviceptr address) {
    struct backing *backing = *find(address);
    struct device *device = device_of(address);
    if (backing == NULL || device == NULL || backing->in_use) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct graph_memory *memory = &device->graph_memory;
    uint64_t wanted = memory->used + backing->bytes;
    if (wanted > memory->reserved) {
        if (!device_take(device, MEMORY_GRAPH, wanted - memory->reserved)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memory->reserved = wanted;
    }
    memory->used = wanted;
    memory->used_high = wanted > memory->used_high ? wanted : memory->used_high;
    memory->reserved_high = memory->reserved > memory->reserved_high ? memory->reserved : memory->reserved_high;
    backing->in_use = true;
    return CUDA_SUCCESS;
}

CUresult graph_memory_give(CUdeviceptr address) {
    struct backing **link = find(address);
    struct device *device = device_of(address);
    if (*link == NULL || device == NULL || !(*link)->in_use) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    device->graph_memory.used -= (*link)->bytes;
    (*link)->in_use = false;
    if ((*link)->holders == 0) {
        remove_backing(link);
    }
    return CUDA_SUCCESS;
}

void graph_memory_end(struct device *device) {
    for (struct backing **link = &backings; *link != NULL;) {
        struct backing *backing = *link;
        if (device_of(backing->address) == device) {
            backing->in_use = false;
            if (backing->holders == 0) {
                remove_backing(link);
                continue;
            }
        }
        link = &backing->next;
    }
    device_give(device, MEMORY_GRAPH, device->graph_memory.reserved);
    device->graph_memory.reserved = device->graph_memory.used = 0;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((result = capture_forbids_unsafe_call()) != CUDA_SUCCESS) {
        return driver_leave(result);
    }
    struct graph_memory *memory = &device->graph_memory;
    device_give(device, MEMORY_GRAPH, memory->reserved - memory->used);
    memory->reserved = memory->used;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct graph_memory *memory = &device->graph_memory;
    const uint64_t values[] = {[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = memory->used,
                               [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = memory->used_high,
                               [CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = memory->reserved,
                               [CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = memory->reserved_high};
    if (value == NULL || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *(cuuint64_t *)value = values[attribute];
    return driver_leave(CUDA_SUCCESS);
}

/* High marks can be set back, to zero only. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value) {
    struct device *device;
    CUresult result = device_enter(dev, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct graph_memory *memory = &device->graph_memory;
    if (value == NULL || *(cuuint64_t *)value != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
        memory->used_high = memory->used;
    } else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
        memory->reserved_high = memory->reserved;
    } else {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return driver_leave(CUDA_SUCCESS);
}
