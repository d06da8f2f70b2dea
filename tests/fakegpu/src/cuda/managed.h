/* Managed memory: on the device only as far as the device used it. The lock is held. */
#pragma once

struct range;

/* Brings a range to its device if there is room; otherwise it stays on the host, as it may. */
void managed_move_in(struct range *range);
void managed_free(struct range *range);
