/* Code and its globals. What they take shows only in NVML's figure for the process, now or, with lazy loading, at the first launch,
 * where it is found before the next refusal. */
#include "../compute/turn.h"
#include "../container.h"
#include "../devices.h"
#include "../driver.h"
#include "../hooks.h"
#include "modules.h"

/* A call that loads something, from before the driver is asked. */
struct loading {
    struct payer payer;
    struct overhead_mark before;
};

static CUresult begin(struct loading *loading)
{
    CUresult result = charge_current(&loading->payer);
    if (result == CUDA_SUCCESS)
        loading->before = overhead_mark(loading->payer.device);
    return result;
}

/* A library belongs to no context: it may be loaded before there is one, and is put into each as it is used. */
static CUresult begin_without_context(struct loading *loading)
{
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS || begin(loading) == CUDA_SUCCESS)
        return result;
    loading->payer = (struct payer){DEVICE_NONE, NULL};
    return CUDA_SUCCESS;
}

/* Notes what a load made the overhead grow by, if only nothing, so that the unload gives it back. */
static void note(const struct loading *loading, uint64_t handle)
{
    if (loading->payer.device != DEVICE_NONE)
        records_add(&process->holdings.modules, (struct record){.key = handle,
                                                                .bytes = overhead_changed(loading->payer.device, &loading->before, 0),
                                                                .device = loading->payer.device,
                                                                .owner = (uintptr_t)loading->payer.context});
}

static CUresult module_loaded(CUresult result, const struct loading *loading, const CUmodule *module)
{
    if (result == CUDA_SUCCESS)
        note(loading, (uintptr_t)*module);
    return result;
}

static CUresult library_loaded(CUresult result, const struct loading *loading, const CUlibrary *library)
{
    if (result == CUDA_SUCCESS)
        note(loading, (uintptr_t)*library);
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
    struct loading loading;
    CUresult result = begin(&loading);
    return result == CUDA_SUCCESS ? module_loaded(cuda.cuModuleLoad(module, fname), &loading, module) : result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct loading loading;
    CUresult result = begin(&loading);
    return result == CUDA_SUCCESS ? module_loaded(cuda.cuModuleLoadData(module, image), &loading, module) : result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    struct loading loading;
    CUresult result = begin(&loading);
    return result == CUDA_SUCCESS
               ? module_loaded(cuda.cuModuleLoadDataEx(module, image, numOptions, options, optionValues), &loading, module)
               : result;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    struct loading loading;
    CUresult result = begin(&loading);
    return result == CUDA_SUCCESS ? module_loaded(cuda.cuModuleLoadFatBinary(module, fatCubin), &loading, module) : result;
}

CUresult cuModuleUnload(CUmodule hmod)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.modules, (uintptr_t)hmod, &record);
    turn_functions_end();
    result = cuda.cuModuleUnload(hmod);
    return known ? unloaded(result, &record) : result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    struct loading loading;
    CUresult result = begin_without_context(&loading);
    return result == CUDA_SUCCESS
               ? library_loaded(cuda.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                                       libraryOptionValues, numLibraryOptions),
                                &loading, library)
               : result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    struct loading loading;
    CUresult result = begin_without_context(&loading);
    return result == CUDA_SUCCESS
               ? library_loaded(cuda.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                                                           libraryOptions, libraryOptionValues, numLibraryOptions),
                                &loading, library)
               : result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    struct record record;
    CUresult result = container_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool known = records_take(&process->holdings.modules, (uintptr_t)library, &record);
    turn_functions_end();
    result = cuda.cuLibraryUnload(library);
    if (known)
        unloaded(result, &record);
    for (unsigned device = 0; result == CUDA_SUCCESS && device < REGION_DEVICES; device++)
        overhead_gone(device, 0);
    return result;
}
