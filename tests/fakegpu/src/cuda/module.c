#include "module.h"

#include "ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t whole_units(uint64_t bytes) { return (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT; }

/* CUDA_MODULE_LOADING; without it lazy from CUDA 12.2 on, as NVIDIA's "Lazy Loading" says of Linux. */
static bool loads_lazily(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    if (mode != NULL && strcmp(mode, "EAGER") == 0) {
        return false;
    }
    return (mode != NULL && strcmp(mode, "LAZY") == 0) || driver.config.cuda_version >= 12020;
}

CUresult module_load_code(CUmodule module) {
    if (module->loaded) {
        return CUDA_SUCCESS;
    }
    uint64_t cost = whole_units(module->image.bytes);
    if (!device_take(module->object.context->device, MEMORY_MODULE, cost)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->code_charged = cost;
    module->loaded = true;
    return CUDA_SUCCESS;
}

static size_t variable_bytes(const struct image_symbol *symbol) { return (symbol->bytes + 255) / 256 * 256; }

/* Variables are there from the beginning. */
static CUresult make_globals(CUmodule module) {
    size_t bytes = 0;
    for (size_t i = 0; i < module->image.count; i++) {
        bytes += module->image.symbol[i].variable ? variable_bytes(&module->image.symbol[i]) : 0;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    struct device *device = module->object.context->device;
    if (!device_take(device, MEMORY_MODULE, whole_units(bytes))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->globals_charged = whole_units(bytes);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->globals = range_add((struct range){.start = (uintptr_t)pages,
                                               .bytes = bytes,
                                               .kind = RANGE_GLOBALS,
                                               .device = device,
                                               .reachable = true,
                                               .writable = true});
    return module->globals != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void module_destroy(void *object) {
    CUmodule module = object;
    while (module->functions != NULL) {
        CUfunction gone = module->functions;
        module->functions = gone->next;
        object_delete(gone);
    }
    if (module->globals != NULL) {
        munmap((void *)module->globals->start, module->globals->bytes);
        range_remove(module->globals);
    }
    device_give(module->object.context->device, MEMORY_MODULE, module->globals_charged + module->code_charged);
    image_free(&module->image);
    object_delete(module);
}

CUresult module_make(struct CUctx_st *context, const void *data, CUmodule *out) {
    CUmodule module = object_new(OBJECT_MODULE, sizeof *module, context, module_destroy);
    if (module == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = image_read(data, &module->image);
    if (result == CUDA_SUCCESS) {
        result = make_globals(module);
    }
    if (result == CUDA_SUCCESS && !loads_lazily()) {
        result = module_load_code(module);
    }
    if (result != CUDA_SUCCESS) {
        module_destroy(module);
        return result;
    }
    *out = module;
    return CUDA_SUCCESS;
}

static const struct image_symbol *find_symbol(const struct image *image, const char *name, bool variable) {
    for (size_t i = 0; i < image->count; i++) {
        if (image->symbol[i].variable == variable && strcmp(image->symbol[i].name, name) == 0) {
            return &image->symbol[i];
        }
    }
    return NULL;
}

CUresult module_function(CUmodule module, const char *name, CUfunction *out) {
    for (CUfunction function = module->functions; function != NULL; function = function->next) {
        if (strcmp(function->name, name) == 0) {
            *out = function;
            return CUDA_SUCCESS;
        }
    }
    const struct image_symbol *symbol = find_symbol(&module->image, name, false);
    if (symbol == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    CUfunction function = object_new(OBJECT_FUNCTION, sizeof *function, NULL, NULL);
    if (function == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    function->module = module;
    function->name = symbol->name;
    function->next = module->functions;
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    const struct device_config *device = &module->object.context->device->config;
    function->attribute[CU_FUNC_ATTRIBUTE_PTX_VERSION] = function->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION] =
        (int)(device->compute_major * 10 + device->compute_minor);
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
    function->attribute[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    module->functions = function;
    *out = function;
    return CUDA_SUCCESS;
}

CUresult module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes) {
    size_t offset = 0;
    for (size_t i = 0; i < module->image.count; i++) {
        const struct image_symbol *symbol = &module->image.symbol[i];
        if (!symbol->variable) {
            continue;
        }
        if (strcmp(symbol->name, name) == 0) {
            if (address != NULL) {
                *address = module->globals->start + offset;
            }
            if (bytes != NULL) {
                *bytes = symbol->bytes;
            }
            return CUDA_SUCCESS;
        }
        offset += variable_bytes(symbol);
    }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult load_as(const char *call, CUmodule *module, const void *data) {
    struct CUctx_st *context;
    CUresult result = context_enter_as(call, &context, UNSAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool good = module != NULL && data != NULL;
    return driver_leave(good ? module_make(context, data, module) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuModuleLoadData(CUmodule *module, const void *data) { return load_as(__func__, module, data); }

/* Options are for a compiler, and there is none. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned int count, CUjit_option *options,
                            void **values) {
    (void)count;
    (void)options;
    (void)values;
    return load_as(__func__, module, data);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data) { return load_as(__func__, module, data); }

CUresult image_from_file(const char *path, void **data) {
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL) {
        return path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *content = bytes < 0 ? NULL : calloc(1, (size_t)bytes + 64);
    rewind(file);
    if (content == NULL || fread(content, 1, (size_t)bytes, file) != (size_t)bytes) {
        free(content);
        content = NULL;
    }
    fclose(file);
    *data = content;
    return content == NULL ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    void *data;
    CUresult result = image_from_file(path, &data);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = load_as(__func__, module, data);
    free(data);
    return result;
}

static CUresult module_enter_as(const char *call, CUmodule module, const void *out) {
    CUresult result = driver_enter_as(call, SAFE);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_is(module, OBJECT_MODULE)) {
        return driver_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return out == NULL ? driver_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    CUresult result = module_enter_as(__func__, module, "");
    if (result != CUDA_SUCCESS) {
        return result;
    }
    module_destroy(module);
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUresult result = module_enter_as(__func__, module, name == NULL ? NULL : (void *)function);
    return result != CUDA_SUCCESS ? result : driver_leave(module_function(module, name, function));
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    CUresult result = module_enter_as(__func__, module, count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *count = 0;
    for (size_t i = 0; i < module->image.count; i++) {
        *count += !module->image.symbol[i].variable;
    }
    return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int most, CUmodule module) {
    CUresult result = module_enter_as(__func__, module, functions);
    unsigned found = 0;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t i = 0; i < module->image.count && found < most && result == CUDA_SUCCESS; i++) {
        if (!module->image.symbol[i].variable) {
            result = module_function(module, module->image.symbol[i].name, &functions[found++]);
        }
    }
    return driver_leave(result);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    CUresult result = module_enter_as(__func__, module, name);
    return result != CUDA_SUCCESS ? result : driver_leave(module_global(module, name, address, bytes));
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode == NULL) {
        return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *mode = loads_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return driver_leave(CUDA_SUCCESS);
}
