/* Says how much of the fake card's time each process had, at the model times that it is told, one a line of input. Time stands still
 * from its answer to the next line.
 *
 * usage: sampler TIMELINE_FILE. It prints "ready", then for each line the ns that each place on the timeline of the first card has had. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "programs.h"
#include "timeline_file.h"

typedef struct {
    unsigned gpu, memory;
} utilization;

extern int nvmlInit_v2(void);
extern int nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
extern int nvmlDeviceGetUtilizationRates(nvmlDevice_t, utilization *);

int main(int argc, char **argv)
{
    nvmlDevice_t card;
    utilization rates;
    char line[64];
    int opened = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (opened < 0 || cuInit(0) || nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &card))
        return 1;
    const struct model *model = model_find();
    const struct timeline_file *file = mmap(NULL, sizeof(*file), PROT_READ, MAP_SHARED, opened, 0);
    if (!model || file == MAP_FAILED)
        return 1;
    model->join();
    printf("ready %llu\n", (unsigned long long)model->now_ns());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        model->sleep_until_ns(strtoull(line, NULL, 10));
        nvmlDeviceGetUtilizationRates(card, &rates); /* brings the timeline up to now */
        for (int i = 0; i < TIMELINE_PROCESSES && file->device[0].process[i].slot; i++)
            printf("%llu ", (unsigned long long)file->device[0].process[i].done_ns);
        putchar('\n');
        fflush(stdout);
    }
    model->leave();
    return 0;
}
