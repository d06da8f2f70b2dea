/* The start of CUDA, and the driver's own way to hand out functions. */
#include "container.h"
#include "driver.h"
#include "hooks.h"

CUresult cuInit(unsigned int flags)
{
    driver_find_cuda();
    CUresult result = cuda.cuInit(flags);
    return result == CUDA_SUCCESS ? container_enter() : result;
}

/* The driver is asked with the caller's own arguments, since what a name means depends on the version and the flags; the address
 * that it answers tells which of its functions it meant. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    driver_find_cuda();
    CUresult result = cuda.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = hook_translate_any(*pfn);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    driver_find_cuda();
    CUresult result = cuda.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = hook_translate_any(*pfn);
    return result;
}
