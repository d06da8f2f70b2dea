/* What is seldom called from where every allocation passes. Kept apart, it costs nothing there: no registers are saved for it, and the
 * usual way is laid out in one piece. */
#ifndef SLOW_H
#define SLOW_H

#define SLOW __attribute__((noinline, cold))

#endif
