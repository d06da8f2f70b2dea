/* Which memory lies behind which addresses: an ordered list of ranges. */
#ifndef MAPPINGS_H
#define MAPPINGS_H

#include "holdings.h"

/* False: no memory to note it. */
bool mappings_add(struct mappings *mappings, struct mapping mapping);

/* Removes any one that lies within the range. False: there is none left. */
bool mappings_take(struct mappings *mappings, uint64_t space, uint64_t start, uint64_t length, struct mapping *taken);

/* The handle behind an address, 0 if there is none. */
uint64_t mappings_handle_at(struct mappings *mappings, uint64_t address);

#endif
