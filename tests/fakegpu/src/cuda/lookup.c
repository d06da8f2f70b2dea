#include "lookup.h"

#include <string.h>

#define API(name, since, stream, function) extern void function(void);
#define NOT_MODELLED API
#include "api.def"
#undef API

enum stream { NO_NAME = 0, LEGACY = 1, PER_THREAD = 2, ANY = LEGACY | PER_THREAD };

static const struct row {
    const char *name;
    unsigned since;
    enum stream stream;
    void (*function)(void);
} rows[] = {
#define API(name, since, stream, function) {#name, since, stream, function},
#include "api.def"
#undef API
#undef NOT_MODELLED
};

static unsigned newest_version = UINT32_MAX;

void lookup_limit(int driver_cuda_version) { newest_version = (unsigned)driver_cuda_version; }

/* The rows of one name stand together, the oldest first. */
void *lookup(const char *name, unsigned cuda_version, bool per_thread_stream, CUdriverProcAddressQueryResult *status) {
    enum stream stream = per_thread_stream ? PER_THREAD : LEGACY;
    void (*found)(void) = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        if (row->stream == NO_NAME || row->since > newest_version || strcmp(row->name, name) != 0) {
            continue;
        }
        if ((row->stream & stream) != 0 && row->since <= cuda_version) {
            found = row->function;
        }
        *status = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return (void *)(uintptr_t)found;
}
