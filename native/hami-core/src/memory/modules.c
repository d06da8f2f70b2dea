/* Code and its globals. What they take shows only in NVML's figure for the process, now or, with lazy loading, at the first launch,
 * where it is found before the next refusal. */
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "modules.h"
#include "overhead.h"

/* Notes what a load made the overhead grow by, so that the unload gives it back. */
static CUresult loaded(CUresult result, const struct payer *payer, uint64_t booked_before, const void *handle)
{
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t grown = overhead_grown(payer->device, booked_before);
    if (grown)
        records_add(&process->holdings.modules,
                    (struct record){.key = (uintptr_t)handle,
                                    .bytes = grown,
                                    .device = payer->device,
                                    .owner = (uintptr_t)payer->context});
    return result;
}

void modules_gone_with(CUcontext context)
{
    struct record record;
    while (context && records_take_of(&process->holdings.modules, (uintptr_t)context, &record))
        overhead_shrink(record.device, record.bytes);
}

static CUresult unloaded(CUresult result, const struct record *record)
{
    if (result == CUDA_SUCCESS)
        overhead_shrink(record->device, record->bytes);
    else
        records_add(&process->holdings.modules, *record);
    return result;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuModuleLoad(module, fname);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuModuleLoadData(module, image);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuModuleLoadDataEx(module, image, numOptions, options, optionValues);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuModuleLoadFatBinary(module, fatCubin);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleUnload(CUmodule hmod)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.modules, (uintptr_t)hmod, &record);
    result = cuda.cuModuleUnload(hmod);
    return known ? unloaded(result, &record) : result;
}

/* A library belongs to no context: it may be loaded before there is one, and is put into each as it is used. */
static struct payer current_if_any(void)
{
    struct payer payer;
    return charge_current(&payer) == CUDA_SUCCESS ? payer : (struct payer){DEVICE_NONE, NULL};
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct payer payer = current_if_any();
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                    libraryOptionValues, numLibraryOptions);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *library : NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct payer payer = current_if_any();
    uint64_t booked = overhead_booked(payer.device);
    result = cuda.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                        libraryOptionValues, numLibraryOptions);
    return loaded(result, &payer, booked, result == CUDA_SUCCESS ? *library : NULL);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.modules, (uintptr_t)library, &record);
    result = cuda.cuLibraryUnload(library);
    return known ? unloaded(result, &record) : result;
}
