/* The functions that are exported and found as the driver's are, and say that they are not supported. */
#include "driver.h"

#define API(name, since, stream, function)
#define NOT_MODELLED(name, since, stream, function)                                                                    \
    CUresult function(void);                                                                                           \
    CUresult function(void) {                                                                                          \
        CUresult ready = driver_ready();                                                                               \
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_NOT_SUPPORTED;                                               \
    }
#include "api.def"
