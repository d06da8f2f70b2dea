#include "prototypes.h"

static const struct {
    CUresult code;
    const char *name, *text;
} known[] = {
#define ERROR(code, name, text) {name, #name, text},
#include "errors.def"
#undef ERROR
};

static int find(CUresult error) {
    for (int i = 0; i < (int)(sizeof known / sizeof *known); i++) {
        if (known[i].code == error) {
            return i;
        }
    }
    return -1;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
    int index = find(error);
    *name = index < 0 ? NULL : known[index].name;
    return index < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    int index = find(error);
    *text = index < 0 ? NULL : known[index].text;
    return index < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
