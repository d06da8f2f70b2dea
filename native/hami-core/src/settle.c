#include "settle.h"

#include "memory/graphs.h"
#include "memory/overhead.h"
#include "memory/pools.h"
#include "quiet.h"

static void settle(void)
{
    pools_settle();
    graphs_settle();
}

void settle_for_query(unsigned device)
{
    settle();
    overhead_replace_estimates(device);
}

void settle_and_trim(unsigned device)
{
    struct quiet quiet = quiet_begin();
    pools_trim(device);
    graphs_trim(device);
    overhead_settle(device);
    quiet_end(quiet);
    settle();
}
