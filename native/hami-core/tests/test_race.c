#include "harness.h"
#include "world.h"

/* 8 contexts take 800 of 4147 MiB; of the rest, 110 MiB fit 30 times, and 32 threads ask. */
TEST(of_32_threads_in_8_processes_exactly_those_that_fit_are_granted)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    world_run(&world, RACE, "8 4 10000 115343360 30");
}

/* 4 contexts; 3747 MiB hold 200 MiB 18 times. */
TEST(of_4_processes_of_one_thread_all_are_granted_where_all_fit)
{
    struct world world = world_make();
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    world_run(&world, RACE, "4 1 5000 209715200 4");
}
