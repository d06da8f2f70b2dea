/* Code and its globals. What they take shows only in NVML's figure for the process, now or, with lazy loading, at the first launch,
 * where it is found before the next refusal. */
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "modules.h"

/* Notes what a load made the overhead grow by, if only nothing, so that the unload gives it back. */
static CUresult loaded(CUresult result, const struct payer *payer, const struct overhead_mark *before, const void *handle)
{
    if (result == CUDA_SUCCESS && payer->device != DEVICE_NONE)
        records_add(&process->holdings.modules, (struct record){.key = (uintptr_t)handle,
                                                                .bytes = overhead_changed(payer->device, before, 0),
                                                                .device = payer->device,
                                                                .owner = (uintptr_t)payer->context});
    return result;
}

void modules_gone_with(CUcontext context)
{
    struct record record;
    while (context && records_take_of(&process->holdings.modules, (uintptr_t)context, &record))
        overhead_gone(record.device, record.bytes);
}

void modules_limit_changed(const struct payer *payer, const struct overhead_mark *before)
{
    struct record record = {.bytes = 0};
    records_take(&process->holdings.modules, (uintptr_t)payer->context, &record);
    records_add(&process->holdings.modules, (struct record){.key = (uintptr_t)payer->context,
                                                            .bytes = overhead_changed(payer->device, before, record.bytes),
                                                            .device = payer->device,
                                                            .owner = (uintptr_t)payer->context});
}

static CUresult unloaded(CUresult result, const struct record *record)
{
    if (result == CUDA_SUCCESS)
        overhead_gone(record->device, record->bytes);
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
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuModuleLoad(module, fname);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuModuleLoadData(module, image);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuModuleLoadDataEx(module, image, numOptions, options, optionValues);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *module : NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    struct payer payer;
    CUresult result = charge_current(&payer);
    if (result != CUDA_SUCCESS)
        return result;
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuModuleLoadFatBinary(module, fatCubin);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *module : NULL);
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
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                    libraryOptionValues, numLibraryOptions);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *library : NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct payer payer = current_if_any();
    struct overhead_mark before = overhead_mark(payer.device);
    result = cuda.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                        libraryOptionValues, numLibraryOptions);
    return loaded(result, &payer, &before, result == CUDA_SUCCESS ? *library : NULL);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.modules, (uintptr_t)library, &record);
    result = cuda.cuLibraryUnload(library);
    if (known)
        unloaded(result, &record);
    for (unsigned device = 0; result == CUDA_SUCCESS && device < REGION_DEVICES; device++)
        overhead_gone(device, 0);
    return result;
}
