/* cuMemAlloc and cuMemFree: the plain way to take device memory. */
#include "../charge.h"
#include "../container.h"
#include "../driver.h"
#include "../hooks.h"

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct charge charge;
    unsigned device;
    CUresult result = charge_current_device(&device);

    if (result == CUDA_SUCCESS)
        result = charge_take(&charge, device, CHARGE_DATA, bytesize);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAlloc_v2(dptr, bytesize);
    if (result == CUDA_SUCCESS && !charge_bind(&charge, *dptr)) {
        cuda.cuMemFree_v2(*dptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        charge_give_back(&charge);
    return result;
}

/* The entry goes before the driver's free, since another thread may be given the same address right after it. */
CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct charge charge;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool charged = charge_unbind(dptr, &charge);
    result = cuda.cuMemFree_v2(dptr);
    if (charged && result == CUDA_SUCCESS)
        charge_give_back(&charge);
    else if (charged)
        charge_bind(&charge, dptr);
    return result;
}
