/* Memory by handle. */
#ifndef VIRTUAL_H
#define VIRTUAL_H

#include <stdint.h>

/* An array is gone, and with it what was mapped into it. */
void virtual_array_gone(uint64_t array);

#endif
