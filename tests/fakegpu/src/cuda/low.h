#pragma once

struct range;

/* Ends memory of the first ABI. The lock is held. */
void low_free(struct range *range);
