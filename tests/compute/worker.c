/* A program that keeps the fake card busy in model time.
 *
 * usage: worker HOW LENGTH [SECONDS [BEGIN]]
 *   launch    launches kernels of that length (50us, 5ms) without waiting for them
 *   graph     launches graphs of a hundred kernels that take that long together
 *   request   every 50 ms one kernel, and waits for it
 *   random    the same after a random pause, 40 ms on the average
 *   20%       as many kernels as keep a card busy by that part, if it is free
 * For so many seconds only, if they are given and not 0, and not before so many.
 * It prints "ready", and model time stands still until it has read a time in ns. It works until then and prints how much it launched and,
 * for requests, the mean and the greatest latency in ns. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs.h"

enum { GRAPH_KERNELS = 100, PERIOD_NS = 50000000 };

static const struct model *model;
static CUfunction kernel, touch;
static CUgraphExec graph;
static CUstream stream;
static uint64_t length_ns, launched, sum_ns, most_ns;
static unsigned part;
static uint64_t most_seconds, first_second;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}

static uint64_t nanoseconds(const char *text)
{
    char *unit;
    uint64_t number = strtoull(text, &unit, 10);
    return strcmp(unit, "ms") == 0 ? number * 1000000 : strcmp(unit, "us") == 0 ? number * 1000 : number;
}

static void load(const char *how, const char *length)
{
    char code[512], name[64];
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUgraph captured;
    bool as_graph = strcmp(how, "graph") == 0;

    length_ns = nanoseconds(length);
    part = strchr(how, '%') ? (unsigned)atoi(how) : 0;
    snprintf(name, sizeof(name), "work_%lluns", (unsigned long long)(as_graph ? length_ns / GRAPH_KERNELS : length_ns));
    snprintf(code, sizeof(code), ".version 8.0\n.target sm_75\n.visible .entry %s() { ret; }\n.visible .entry touch() { ret; }\n", name);
    must(cuInit(0), "cuInit");
    model = model_find();
    if (!model)
        exit(1);
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoadData(&module, code), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel, module, name), "cuModuleGetFunction");
    must(cuModuleGetFunction(&touch, module, "touch"), "cuModuleGetFunction");
    must(cuStreamCreate(&stream, 1), "cuStreamCreate");
    must(cuLaunchKernel(touch, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel"); /* takes its place on the timeline */
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (!as_graph)
        return;
    must(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    for (unsigned i = 0; i < GRAPH_KERNELS; i++)
        must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    must(cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");
    must(cuGraphInstantiateWithFlags(&graph, captured, 0), "cuGraphInstantiate");
}

static void launch(void)
{
    if (graph)
        must(cuGraphLaunch(graph, stream), "cuGraphLaunch");
    else
        must(cuLaunchKernel(kernel, 32, 1, 1, 128, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
    launched++;
}

static void request(uint64_t begin)
{
    launch();
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    uint64_t taken = model->now_ns() - begin;
    sum_ns += taken;
    most_ns = taken > most_ns ? taken : most_ns;
}

/* Exponential, as of many who ask independently. */
static uint64_t random_pause(void)
{
    static const double mean_ns = 40e6;
    static unsigned short seed[3] = {1, 2, 3};
    return (uint64_t)(-log(1 - erand48(seed)) * mean_ns);
}

static void work_until(uint64_t end, const char *how)
{
    bool random = strcmp(how, "random") == 0, requests = random || strcmp(how, "request") == 0;
    model->sleep_until_ns(model->now_ns() + first_second * 1000000000u);
    uint64_t next = model->now_ns();
    if (most_seconds && next + most_seconds * 1000000000u < end)
        end = next + most_seconds * 1000000000u;
    while (model->now_ns() < end) {
        if (requests || part) {
            next = random ? model->now_ns() + random_pause() : next + (requests ? PERIOD_NS : length_ns * 100 / part);
            if (model->now_ns() < next)
                model->sleep_until_ns(next);
        }
        if (requests)
            request(next);
        else
            launch();
    }
}

int main(int argc, char **argv)
{
    char line[64];
    if (argc < 3)
        return 2;
    load(argv[1], argv[2]);
    most_seconds = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    first_second = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    model->join();
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof(line), stdin))
        work_until(strtoull(line, NULL, 10), argv[1]);
    model->leave();
    printf("%llu %llu %llu\n", (unsigned long long)launched, (unsigned long long)(launched ? sum_ns / launched : 0),
           (unsigned long long)most_ns);
    return 0;
}
