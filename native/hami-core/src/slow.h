/* What every allocation passes, and what is seldom called from there. */
#ifndef SLOW_H
#define SLOW_H

/* These lie together on one page of code, which begins with take_up_to in charge.c: with one of them across the end of a page, taking
 * and freeing took up to a quarter longer. Only GNU ld puts them together; with another they lie as any function. */
#define HOT __attribute__((hot))

/* Kept apart, it costs nothing where it is not called: no registers are saved for it, and the usual way is laid out in one piece. */
#define SLOW __attribute__((noinline, cold))

#endif
