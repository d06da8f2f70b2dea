#pragma once

/* Drops what was mapped into an array or mipmapped array that ends. The lock is held. */
void array_mapping_forget(const void *array);
