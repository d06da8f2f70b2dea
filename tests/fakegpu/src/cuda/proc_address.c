/* cuGetProcAddress. Like the driver's, it needs no cuInit and crashes on a NULL name or function. */
#include "lookup.h"
#include "prototypes.h"

static bool valid(cuuint64_t flags) {
    return flags <= (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
}

static bool per_thread(cuuint64_t flags) { return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0; }

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    if (!valid(flags)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdriverProcAddressQueryResult status;
    void *found = lookup(symbol, (unsigned)cuda_version, per_thread(flags), &status);
    if (found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = found;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    if (!valid(flags)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdriverProcAddressQueryResult found;
    *function = lookup(symbol, (unsigned)cuda_version, per_thread(flags), &found);
    if (status != NULL) {
        *status = found;
    }
    return CUDA_SUCCESS;
}
