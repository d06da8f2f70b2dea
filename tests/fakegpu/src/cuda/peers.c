/* Access between devices: any two whole cards reach each other. */
#include "driver.h"

static bool reaches(const struct device *from, const struct device *to) {
    return from != to && from->config.mig_uuid[0] == '\0' && to->config.mig_uuid[0] == '\0';
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice from, CUdevice to) {
    struct device *device;
    CUresult result = device_enter(from, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (to < 0 || to >= driver.device_count) {
        return driver_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    if (can == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *can = reaches(device, &driver.device[to]);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
    struct device *device;
    CUresult result = device_enter(from, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (to < 0 || to >= driver.device_count || from == to) {
        return driver_leave(CUDA_ERROR_INVALID_DEVICE);
    }
    if (value == NULL || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        attribute > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    bool access = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                  attribute == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
    *value = access && reaches(device, &driver.device[to]);
    return driver_leave(CUDA_SUCCESS);
}

static CUresult peer_of(struct CUctx_st *context, CUcontext peer, uint32_t *bit) {
    if ((peer = context_of(peer)) == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!reaches(context->device, peer->device)) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    *bit = 1u << device_ordinal(peer->device);
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    struct CUctx_st *context;
    uint32_t bit;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = peer_of(context, peer, &bit);
    if (result == CUDA_SUCCESS && (context->peers & bit) != 0) {
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    }
    if (result == CUDA_SUCCESS) {
        context->peers |= bit;
    }
    return driver_leave(result);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    struct CUctx_st *context;
    uint32_t bit;
    CUresult result = context_enter(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = peer_of(context, peer, &bit);
    if (result == CUDA_SUCCESS && (context->peers & bit) == 0) {
        result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    if (result == CUDA_SUCCESS) {
        context->peers &= ~bit;
    }
    return driver_leave(result);
}
