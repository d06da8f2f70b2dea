#pragma once

struct range;

/* Ends a buffer of imported memory. The lock is held. */
void external_unmap(struct range *range);
