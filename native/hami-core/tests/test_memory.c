#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

static const char two_cards[] = "state = gpu.state\n"
                                "driver = 580.65.06\n"
                                "cuda = 13.0\n"
                                "[device]\n"
                                "name = Tesla T4\n"
                                "uuid = " T4_UUID "\n"
                                "memory-mib = 15360\n"
                                "context-mib = 100\n"
                                "[device]\n"
                                "name = Tesla T4\n"
                                "uuid = GPU-22222222-3333-4444-5555-666666666666\n"
                                "memory-mib = 15360\n"
                                "context-mib = 100\n";

static void play(const char *name)
{
    struct world world = world_make();
    char command[8 * WORLD_PATH], said[4096];
    world_gpu(&world, two_cards);
    world_limits(&world, "container=main\nmemory=4096m\n", "4147m");
    snprintf(command, sizeof(command), "FAKEGPU_CONFIG=%s/fakegpu.conf LD_LIBRARY_PATH=%s LD_PRELOAD=%s %s %s 2>%s/errors", world.directory,
             FAKEGPU, world.library, SCENARIOS, name, world.directory);
    FILE *program = popen(command, "r");
    CHECK(program != NULL);
    size_t length = fread(said, 1, sizeof(said) - 1, program);
    said[length] = '\0';
    int status = pclose(program);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        check_failed(__FILE__, __LINE__, "%s: status %#x: %s", name, status, said);
}

#define SCENARIO(name) TEST(name) { play(#name); }
#include "scenarios.def"
