/* Functions of modules: what can be asked of them and set. */
#include "function.h"

CUresult function_get(CUfunction handle, struct CUctx_st *context, CUfunction *function) {
    if (object_is(handle, OBJECT_KERNEL)) {
        return context == NULL ? CUDA_ERROR_INVALID_CONTEXT : kernel_function((CUkernel)handle, context, function);
    }
    *function = handle;
    return object_is(handle, OBJECT_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult function_enter_as(const char *call, CUfunction *function, const void *out) {
    struct CUctx_st *context = NULL;
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (object_is(*function, OBJECT_KERNEL)) {
        result = context_current(&context);
    }
    if (result == CUDA_SUCCESS) {
        result = function_get(*function, context, function);
    }
    if (result == CUDA_SUCCESS && out == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

static CUresult get_attribute_as(const char *call, int *value, CUfunction_attribute attribute, CUfunction function) {
    CUresult result = function_enter_as(call, &function, value);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *value = function->attribute[attribute];
    return driver_leave(CUDA_SUCCESS);
}

static CUresult set_attribute_as(const char *call, CUfunction function, CUfunction_attribute attribute, int value) {
    enum { MOST_SHARED = 65536 };
    CUresult result = function_enter_as(call, &function, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool dynamic = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= MOST_SHARED;
    bool carveout = attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100;
    bool cluster = attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    if (!dynamic && !carveout && !cluster) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    function->attribute[attribute] = value;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    return get_attribute_as(__func__, value, attribute, function);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    return set_attribute_as(__func__, function, attribute, value);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice dev) {
    (void)dev; /* all devices here have the same limits */
    return get_attribute_as(__func__, value, attribute, (CUfunction)kernel);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice dev) {
    (void)dev;
    return set_attribute_as(__func__, (CUfunction)kernel, attribute, value);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    CUresult result = function_enter(&function, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    CUresult result = function_enter(&function, module);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *module = function->module;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
    CUresult result = function_enter(&function, name);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *name = function->name;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncLoad(CUfunction function) {
    CUresult result = function_enter(&function, "");
    return result != CUDA_SUCCESS ? result : driver_leave(module_load_code(function->module));
}

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    CUresult result = function_enter(&function, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (x <= 0 || y <= 0 || z <= 0) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    function->block[0] = (unsigned)x;
    function->block[1] = (unsigned)y;
    function->block[2] = (unsigned)z;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
    CUresult result = function_enter(&function, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    function->shared_bytes = bytes;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
    (void)dev;
    return cuFuncSetCacheConfig((CUfunction)kernel, config);
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
    CUresult result = function_enter(&function, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
    return driver_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    CUresult result = function_enter(&function, state);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *state = function->module->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return driver_leave(CUDA_SUCCESS);
}
