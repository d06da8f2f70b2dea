#pragma once

struct multicast;

/* Ends a multicast object: what is bound to it is let go. The lock is held. */
void multicast_end(struct multicast *multicast);
