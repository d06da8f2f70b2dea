/* Memory that graphs allocate. The driver takes it when a graph is launched and keeps it, per device, for all graphs. */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "../records.h"

/* Reads again what the driver keeps for graphs. */
void graphs_settle(void);

/* Has it give back what no graph uses. */
void graphs_trim(unsigned device);

/* A pointer (LINEAR_OF_GRAPH) was freed: what is kept has room for another graph. */
void graph_pointer_freed(const struct record *record);

#endif
