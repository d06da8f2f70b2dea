/* Address reservations, and allocations mapped into them or into arrays. The lock is held. */
#pragma once

/* Drops what was mapped into an array or mipmapped array that ends. */
void virtual_forget_array(const void *array);

struct range;
void virtual_unmap(struct range *range);
