#include <stdio.h>

#include "harness.h"
#include "world.h"

static const char settings[] = "state = gpu.state\n"
                               "driver = 580.65.06\n"
                               "cuda = 13.0\n";
static const char two_cards[] = "[device]\n"
                                "name = NVIDIA H100\n"
                                "uuid = " T4_UUID "\n"
                                "memory-mib = 15360\n"
                                "context-mib = 100\n"
                                "compute-capability = 9.0\n"
                                "[device]\n"
                                "name = NVIDIA H100\n"
                                "uuid = GPU-22222222-3333-4444-5555-666666666666\n"
                                "memory-mib = 15360\n"
                                "context-mib = 100\n"
                                "compute-capability = 9.0\n";

static void play(const char *name, const char *faults)
{
    struct world world = world_make();
    char configuration[1024];
    CHECK((size_t)snprintf(configuration, sizeof(configuration), "%sfaults = %s\n%s", settings, faults, two_cards) <
          sizeof(configuration));
    world_gpu(&world, configuration);
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    world_run(&world, SCENARIOS, name);
}

#define SCENARIO(name) TEST(name) { play(#name, ""); }
#include "scenarios.def"

TEST(memory_of_another_namespace_is_charged_once)
{
    if (RUNTIME[0])
        skip("a sanitizer knows one namespace");
    play("memory_of_another_namespace_is_charged_once", "");
}

/* As before CUDA 11.6. */
TEST(arrays_of_a_driver_that_does_not_tell_their_size_are_computed)
{
    play("arrays", "cuArrayGetMemoryRequirements=error:801;cuMipmappedArrayGetMemoryRequirements=error:801");
}

TEST(an_estimate_gives_way_to_what_nvml_says)
{
    play("an_estimate_gives_way_to_what_nvml_says", "nvmlDeviceGetComputeRunningProcesses_v2=error:3@1");
}

TEST(estimates_go_with_their_contexts)
{
    play("estimates_go_with_their_contexts", "nvmlDeviceGetComputeRunningProcesses*=error:3");
}

TEST(an_estimate_that_is_gone_counts_no_more)
{
    play("an_estimate_that_is_gone_counts_no_more",
         "nvmlDeviceGetComputeRunningProcesses_v2=error:3@1;nvmlDeviceGetComputeRunningProcesses_v2=error:3@2");
}

TEST(pools_that_grow_are_no_overhead)
{
    play("pools_that_grow_are_no_overhead", "cuMemPoolGetAttribute=sleep:2000");
}

TEST(a_mig_instance_is_the_same_to_nvml_and_cuda)
{
    struct world world = world_make();
    world_gpu(&world, "state = gpu.state\n"
                      "driver = 580.65.06\n"
                      "cuda = 13.0\n"
                      "[device]\n"
                      "name = NVIDIA A100\n"
                      "uuid = " T4_UUID "\n"
                      "mig-uuid = MIG-99999999-2222-3333-4444-555555555555\n"
                      "memory-mib = 15360\n"
                      "context-mib = 100\n"
                      "compute-capability = 8.0\n");
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    world_run(&world, SCENARIOS, "a_mig_instance_is_the_same_to_nvml_and_cuda");
}

TEST(a_pool_that_once_could_not_be_asked_is_charged_once)
{
    play("a_pool_that_once_could_not_be_asked_is_charged_once",
         "cuMemPoolGetAttribute=error:1@1;cuMemPoolGetAttribute=error:1@2");
}

/* Where NVML's figure for the process makes up for nothing. */
TEST(a_pool_that_is_never_told_of_is_what_its_pointers_are)
{
    play("a_pool_that_is_never_told_of_is_what_its_pointers_are",
         "cuMemPoolGetAttribute=error:801;nvmlDeviceGetComputeRunningProcesses*=error:3");
}
