/* Modules: code in a context. Code costs memory when it is loaded, which lazy loading puts off. The lock is held. */
#pragma once

#include "driver.h"
#include "image.h"

struct CUfunc_st {
    struct object object;
    CUmodule module;
    struct CUfunc_st *next; /* of the module */
    const char *name;
    int attribute[CU_FUNC_ATTRIBUTE_MAX];
    unsigned block[3]; /* of the oldest way to launch */
    unsigned shared_bytes;
    bool ran;
};

struct CUmod_st {
    struct object object;
    struct image image;
    CUfunction functions;
    struct range *globals;
    uint64_t globals_charged, code_charged;
    bool loaded;
};

CUresult module_make(struct CUctx_st *context, const void *data, CUmodule *module);
void module_destroy(void *module);
CUresult module_function(CUmodule module, const char *name, CUfunction *function);
CUresult module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes);

/* Brings the code to the device if it is not there yet. */
CUresult module_load_code(CUmodule module);

/* The content of a file, with zeros behind it, to be freed. */
CUresult image_from_file(const char *path, void **data);

/* library.c: the function that a kernel of a library is in a context. */
CUresult kernel_function(CUkernel kernel, struct CUctx_st *context, CUfunction *function);
