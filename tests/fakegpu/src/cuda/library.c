/* Libraries: code that belongs to no context, and becomes a module in each context that uses it. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

struct library_module {
    struct library_module *next;
    struct CUctx_st *context;
    unsigned long long context_id; /* a context ends with its modules */
    CUmodule module;
};

struct CUkern_st {
    struct object object;
    CUlibrary library;
    struct CUkern_st *next;
    const char *name;
};

struct CUlib_st {
    struct object object;
    void *data;
    struct image image;
    struct CUkern_st *kernels;
    struct library_module *modules;
};

static void destroy(CUlibrary library) {
    while (library->modules != NULL) {
        struct library_module *gone = library->modules;
        library->modules = gone->next;
        if (context_is_live(gone->context) && gone->context->id == gone->context_id) {
            module_destroy(gone->module);
        }
        free(gone);
    }
    while (library->kernels != NULL) {
        CUkernel gone = library->kernels;
        library->kernels = gone->next;
        object_delete(gone);
    }
    free(library->data);
    image_free(&library->image);
    object_delete(library);
}

static CUresult make(const void *data, CUlibrary *out) {
    CUlibrary library = object_new(OBJECT_LIBRARY, sizeof *library, NULL, NULL);
    if (library == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = image_read(data, &library->image);
    if (result == CUDA_SUCCESS && (library->data = calloc(1, library->image.bytes + 64)) == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        memcpy(library->data, data, library->image.bytes);
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < library->image.count; i++) {
        if (library->image.symbol[i].variable) {
            continue;
        }
        CUkernel kernel = object_new(OBJECT_KERNEL, sizeof *kernel, NULL, NULL);
        if (kernel == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        kernel->library = library;
        kernel->name = library->image.symbol[i].name;
        kernel->next = library->kernels;
        library->kernels = kernel;
    }
    if (result != CUDA_SUCCESS) {
        destroy(library);
        return result;
    }
    *out = library;
    return CUDA_SUCCESS;
}

static CUresult load_as(const char *call, CUlibrary *library, const void *data) {
    CUresult result = driver_enter_as(call, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver_leave(library == NULL || data == NULL ? CUDA_ERROR_INVALID_VALUE : make(data, library));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *data, CUjit_option *jit, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return load_as(__func__, library, data);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    void *data;
    CUresult result = image_from_file(path, &data);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = load_as(__func__, library, data);
    free(data);
    return result;
}

static CUresult library_enter_as(const char *call, CUlibrary library, const void *out) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(library, OBJECT_LIBRARY)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
    CUresult result = library_enter_as(__func__, library, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    destroy(library);
    return driver_leave(CUDA_SUCCESS);
}

static CUresult module_in(CUlibrary library, struct CUctx_st *context, CUmodule *module) {
    for (struct library_module *known = library->modules; known != NULL; known = known->next) {
        if (known->context == context && known->context_id == context->id) {
            *module = known->module;
            return CUDA_SUCCESS;
        }
    }
    struct library_module *added = malloc(sizeof *added);
    CUresult result = added == NULL ? CUDA_ERROR_OUT_OF_MEMORY : module_make(context, library->data, module);
    if (result != CUDA_SUCCESS) {
        free(added);
        return result;
    }
    *added = (struct library_module){
        .next = library->modules, .context = context, .context_id = context->id, .module = *module};
    library->modules = added;
    return CUDA_SUCCESS;
}

CUresult kernel_function(CUkernel kernel, struct CUctx_st *context, CUfunction *function) {
    CUmodule module;
    CUresult result = module_in(kernel->library, context, &module);
    return result != CUDA_SUCCESS ? result : module_function(module, kernel->name, function);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = library_enter_as(__func__, library, name == NULL ? NULL : (void *)kernel);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUkernel found = library->kernels;
    while (found != NULL && strcmp(found->name, name) != 0) {
        found = found->next;
    }
    if (found == NULL) {
        return driver_leave(CUDA_ERROR_NOT_FOUND);
    }
    *kernel = found;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    CUresult result = library_enter_as(__func__, library, count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *count = 0;
    for (CUkernel kernel = library->kernels; kernel != NULL; kernel = kernel->next) {
        ++*count;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int most, CUlibrary library) {
    CUresult result = library_enter_as(__func__, library, kernels);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    unsigned found = 0;
    for (CUkernel kernel = library->kernels; kernel != NULL && found < most; kernel = kernel->next) {
        kernels[found++] = kernel;
    }
    return driver_leave(CUDA_SUCCESS);
}

static CUresult module_here_as(const char *call, CUlibrary library, const void *out, CUmodule *module) {
    CUresult result = library_enter_as(call, library, out);
    struct CUctx_st *context;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = module_in(library, context, module);
    }
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(result);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CUmodule here;
    CUresult result = module_here_as(__func__, library, module, &here);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *module = here;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
    CUmodule here;
    CUresult result = module_here_as(__func__, library, name, &here);
    return result != CUDA_SUCCESS ? result : driver_leave(module_global(here, name, address, bytes));
}

static CUresult kernel_enter_as(const char *call, CUkernel kernel, const void *out) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(kernel, OBJECT_KERNEL)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUresult result = kernel_enter_as(__func__, kernel, function);
    struct CUctx_st *context;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = context_current(&context);
    return driver_leave(result != CUDA_SUCCESS ? result : kernel_function(kernel, context, function));
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    CUresult result = kernel_enter_as(__func__, kernel, library);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *library = kernel->library;
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    CUresult result = kernel_enter_as(__func__, kernel, name);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *name = kernel->name;
    return driver_leave(CUDA_SUCCESS);
}
