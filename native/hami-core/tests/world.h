/* A container to test in: a directory with a fake GPU, the library, its limits and its region, and programs that run in it. */
#ifndef WORLD_H
#define WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* What a context costs on the fake card; NVML books it for the process, so the library measures it. */
#define CONTEXT (100 * MIB)

#define T4_UUID "GPU-11111111-2222-3333-4444-555555555555"
#define WORLD_UID "0c9e7a52-6d2f-4b7e-9a53-b7a35d0c1f11"

/* For programs with a sanitized library preloaded; see harness.c. */
#define NO_LEAK_CHECK "ASAN_OPTIONS=detect_leaks=0"

enum { WORLD_PATH = 512 };

struct world {
    char directory[WORLD_PATH];
    char library[WORLD_PATH];
    char region[WORLD_PATH];
    unsigned generation;
};

/* A fake Tesla T4 of 15,360 MiB and the library, not managed. The directory is removed when the test ends. */
struct world world_make(void);

/* The fake GPU's configuration, all of it. */
void world_gpu(struct world *world, const char *configuration);

/* Makes the container managed, or changes its limits, as a kubelet does it: a new generation, swapped in at once. kai NULL: the file
 * is not there. */
void world_limits(struct world *world, const char *request, const char *kai);

/* The same, and the generation before is removed. */
void world_limits_replace(struct world *world, const char *request, const char *kai);

/* A path in the world. */
const char *world_path(const struct world *world, const char *name, char *buffer);

void write_text(const char *path, const char *text);

/* Runs a program in the container; what it printed. The test fails with that unless it ends with status 0. */
const char *world_run(const struct world *world, const char *program, const char *arguments);

/* A program in the container that obeys commands; see client.c. */
struct client {
    pid_t pid;
    int commands, answers;
    char errors_path[WORLD_PATH];
    char answer[4096];
    char errors[8192];
};

/* `environment` is added, as NAME=VALUE; the rest is empty. way: how it finds CUDA, see client.c. */
struct client client_start(const struct world *world, const char *way, const char *const *environment);

/* One command, one line of answer. "gone" if the program ended. */
const char *client_do(struct client *client, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A command that is not waited for. */
void client_tell(struct client *client, const char *command);

/* What it has written to stderr so far. */
const char *client_errors(struct client *client);

void client_kill(struct client *client);

/* Ends it in order; its exit status. */
int client_end(struct client *client);

#endif
