#include "../common/faults.h"
#include "driver.h"
#include "lookup.h"
#include "visible.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct driver driver;
pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialised;   /* copied by fork */
static atomic_bool *here;         /* on a page that fork leaves zeroed in the child */

static bool in_forked_child(void) { return atomic_load(&initialised) && !atomic_load(here); }

CUresult driver_ready(void) {
    return atomic_load(&initialised) && atomic_load(here) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static bool mark_process(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (here == NULL) {
        void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || madvise(memory, page, MADV_WIPEONFORK) != 0) {
            return false;
        }
        here = memory;
    }
    atomic_store(here, true);
    return true;
}

static CUresult start(void) {
    switch (config_load(&driver.config)) {
    case CONFIG_MISSING:
        return CUDA_ERROR_NO_DEVICE;
    case CONFIG_INVALID:
        return CUDA_ERROR_SYSTEM_NOT_READY;
    case CONFIG_OK:
        break;
    }
    CUresult fault = (CUresult)fault_of("cuInit");
    if (fault != CUDA_SUCCESS) {
        return fault;
    }
    lookup_limit(driver.config.cuda_version);
    int chosen[MAX_DEVICES];
    driver.device_count =
        visible_devices(&driver.config, getenv("CUDA_DEVICE_ORDER"), getenv("CUDA_VISIBLE_DEVICES"), chosen);
    if (driver.device_count == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    if (!state_open(&driver.attachment, &driver.config) || !state_join(&driver.attachment) ||
        !timeline_open(&driver.timeline, &driver.config, &driver.attachment)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (int i = 0; i < driver.device_count; i++) {
        driver.device[i] = (struct device){.config = driver.config.device[chosen[i]],
                                           .state_index = driver.attachment.device_index[chosen[i]]};
    }
    return mark_process() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuInit(unsigned int flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (in_forked_child()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&init_lock);
    CUresult result = CUDA_SUCCESS;
    if (!atomic_load(&initialised)) {
        result = start();
        atomic_store(&initialised, result == CUDA_SUCCESS);
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (atomic_load(&initialised)) {
        *version = driver.config.cuda_version;
        return CUDA_SUCCESS;
    }
    struct config config;
    config_load(&config);
    *version = config.cuda_version;
    return CUDA_SUCCESS;
}
