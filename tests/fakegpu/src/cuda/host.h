#pragma once

struct range;

/* Ends page-locked host memory, allocated or registered. The lock is held. */
void host_free(struct range *range);
