/* Modules and libraries. */
#ifndef MODULES_H
#define MODULES_H

#include "../driver_abi.h"

/* A context is gone, and with it the code that was loaded in it. */
void modules_gone_with(CUcontext context);

#endif
