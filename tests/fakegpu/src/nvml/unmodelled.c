/* The functions that are exported as the real library's are, and say that they are not supported. */
#include "nvml.h"

#define API(function)
#define NOT_MODELLED(function)                                                                                         \
    nvmlReturn_t function(void);                                                                                       \
    nvmlReturn_t function(void) {                                                                                      \
        nvmlReturn_t ready = nvml_ready("");                                                                           \
        return ready != NVML_SUCCESS ? ready : NVML_ERROR_NOT_SUPPORTED;                                               \
    }
#include "api.def"
