/* Modules and libraries. */
#ifndef MODULES_H
#define MODULES_H

#include "overhead.h"

/* A context is gone, and with it the code that was loaded in it. */
void modules_gone_with(CUcontext context);

/* After a limit of the payer's context was set: what it takes beside an empty context is kept as a module of the context is. */
void modules_limit_changed(const struct payer *payer, const struct overhead_mark *before);

#endif
