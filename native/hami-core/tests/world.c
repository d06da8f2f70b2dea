#define _GNU_SOURCE
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static const char t4[] = "state = gpu.state\n"
                         "driver = 535.183.01\n"
                         "cuda = 12.2\n"
                         "[device]\n"
                         "name = Tesla T4\n"
                         "uuid = " T4_UUID "\n"
                         "memory-mib = 15360\n"
                         "context-mib = 100\n";

/* Of the worlds of one test. */
static char directories[16][WORLD_PATH];
static unsigned made;

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_directories(void)
{
    for (unsigned i = 0; i < made; i++)
        nftw(directories[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *world_path(const struct world *world, const char *name, char *buffer)
{
    CHECK(snprintf(buffer, WORLD_PATH, "%s/%s", world->directory, name) < WORLD_PATH);
    return buffer;
}

void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void copy_file(const char *from, const char *to)
{
    char buffer[65536];
    ssize_t length;
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    CHECK(in >= 0 && out >= 0);
    while ((length = read(in, buffer, sizeof(buffer))) > 0)
        CHECK(write(out, buffer, (size_t)length) == length);
    CHECK(length == 0 && close(in) == 0 && close(out) == 0);
}

struct world world_make(void)
{
    struct world world = {.generation = 0};
    char path[WORLD_PATH];

    snprintf(world.directory, sizeof(world.directory), "%s/libvgpu-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(world.directory) != NULL);
    CHECK(chmod(world.directory, 0755) == 0);
    CHECK(made < sizeof(directories) / sizeof(directories[0]));
    snprintf(directories[made], sizeof(directories[made]), "%s", world.directory);
    if (made++ == 0)
        atexit(remove_directories);
    CHECK(mkdir(world_path(&world, "vgpu", path), 0755) == 0);
    CHECK(mkdir(world_path(&world, "vgpu/containers", path), 0755) == 0);
    world_path(&world, "vgpu/libvgpu.so", world.library);
    copy_file(LIBRARY, world.library);
    world_path(&world, "vgpu/containers/" WORLD_UID "_main/usage.cache", world.region);
    world_gpu(&world, t4);
    return world;
}

void world_gpu(struct world *world, const char *configuration)
{
    char path[WORLD_PATH];
    write_text(world_path(world, "fakegpu.conf", path), configuration);
}

void world_limits(struct world *world, const char *request, const char *kai)
{
    char name[WORLD_PATH], path[WORLD_PATH], swapped[WORLD_PATH];

    mkdir(world_path(world, "vgpu/limits", path), 0755);
    mkdir(world_path(world, "vgpu/containers/" WORLD_UID "_main", path), 0777);
    snprintf(name, sizeof(name), "vgpu/limits/..%u", ++world->generation);
    CHECK(mkdir(world_path(world, name, path), 0755) == 0);
    snprintf(name, sizeof(name), "vgpu/limits/..%u/request", world->generation);
    write_text(world_path(world, name, path), request);
    snprintf(name, sizeof(name), "vgpu/limits/..%u/uid", world->generation);
    write_text(world_path(world, name, path), WORLD_UID);
    if (kai) {
        snprintf(name, sizeof(name), "vgpu/limits/..%u/CUDA_DEVICE_MEMORY_LIMIT", world->generation);
        write_text(world_path(world, name, path), kai);
    }
    snprintf(name, sizeof(name), "..%u", world->generation);
    CHECK(symlink(name, world_path(world, "vgpu/limits/..new", path)) == 0);
    CHECK(rename(path, world_path(world, "vgpu/limits/..data", swapped)) == 0);
}

void world_limits_replace(struct world *world, const char *request, const char *kai)
{
    char name[64], path[WORLD_PATH];
    unsigned old = world->generation;
    world_limits(world, request, kai);
    snprintf(name, sizeof(name), "vgpu/limits/..%u", old);
    nftw(world_path(world, name, path), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct client client_start(const struct world *world, const char *way, const char *const *environment)
{
    struct client client = {.pid = 0};
    int commands[2], answers[2];
    static unsigned number;
    char name[64];
    bool linked = strcmp(way, "linked") == 0;

    snprintf(name, sizeof(name), "errors-%d-%u", (int)getpid(), number++);
    world_path(world, name, client.errors_path);
    CHECK(pipe2(commands, O_CLOEXEC) == 0 && pipe2(answers, O_CLOEXEC) == 0);
    client.pid = fork();
    CHECK(client.pid >= 0);
    if (client.pid == 0) {
        char preload[2 * WORLD_PATH], gpu[WORLD_PATH + 32], path[WORLD_PATH], *variables[32] = {preload, gpu, "LD_LIBRARY_PATH=" FAKEGPU, NO_LEAK_CHECK};
        unsigned count = 4;
        int errors = open(client.errors_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
        snprintf(preload, sizeof(preload), "LD_PRELOAD=" RUNTIME ":%s", world->library);
        snprintf(gpu, sizeof(gpu), "FAKEGPU_CONFIG=%s", world_path(world, "fakegpu.conf", path));
        while (environment && *environment)
            variables[count++] = (char *)*environment++;
        dup2(commands[0], 0);
        dup2(answers[1], 1);
        dup2(errors, 2);
        execle(linked ? CLIENT "-linked" : CLIENT, "client", way, (char *)NULL, variables);
        _exit(127);
    }
    close(commands[0]);
    close(answers[1]);
    client.commands = commands[1];
    client.answers = answers[0];
    return client;
}

const char *client_do(struct client *client, const char *format, ...)
{
    char command[1024];
    size_t length = 0;
    va_list arguments;

    va_start(arguments, format);
    int written = vsnprintf(command, sizeof(command) - 1, format, arguments);
    va_end(arguments);
    CHECK(written > 0 && (size_t)written < sizeof(command) - 1);
    command[written++] = '\n';
    if (write(client->commands, command, (size_t)written) != written)
        return "gone";
    while (length + 1 < sizeof(client->answer)) {
        ssize_t added = read(client->answers, client->answer + length, 1);
        if (added < 0 && errno == EINTR)
            continue;
        if (added <= 0)
            return "gone";
        if (client->answer[length] == '\n')
            break;
        length++;
    }
    client->answer[length] = '\0';
    return client->answer;
}

void client_tell(struct client *client, const char *command)
{
    CHECK(dprintf(client->commands, "%s\n", command) > 0);
}

const char *client_errors(struct client *client)
{
    FILE *file = fopen(client->errors_path, "r");
    CHECK(file != NULL);
    size_t length = fread(client->errors, 1, sizeof(client->errors) - 1, file);
    client->errors[length] = '\0';
    fclose(file);
    return client->errors;
}

static int wait_for(struct client *client)
{
    int status;
    close(client->commands);
    while (waitpid(client->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(client->answers);
    return status;
}

void client_kill(struct client *client)
{
    kill(client->pid, SIGKILL);
    wait_for(client);
}

int client_end(struct client *client)
{
    int status = wait_for(client);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const char *world_run(const struct world *world, const char *program, const char *arguments)
{
    static char said[65536];
    char command[8 * WORLD_PATH];
    snprintf(command, sizeof(command), NO_LEAK_CHECK " FAKEGPU_CONFIG=%s/fakegpu.conf LD_LIBRARY_PATH=%s LD_PRELOAD=" RUNTIME ":%s %s %s 2>&1",
             world->directory, FAKEGPU, world->library, program, arguments);
    FILE *run = popen(command, "r");
    CHECK(run != NULL);
    size_t length = fread(said, 1, sizeof(said) - 1, run);
    said[length] = '\0';
    int status = pclose(run);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        check_failed(program, 0, "%s: wait status %#x: %s", arguments, (unsigned)status, said);
    return said;
}
