/* Reads request files, each as a line with its length in bytes and then its text, and prints what the library makes of it:
 * "-" where it is invalid, otherwise container, kind, MiB, fraction's digits and places, at-most, devices, cores, priority,
 * whether the region is mounted. */
#include "request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    size_t length;

    while (scanf("%zu", &length) == 1 && getchar() == '\n') {
        char *text = malloc(length + 1), reason[REASON_BYTES];
        struct request request;
        if (!text || fread(text, 1, length, stdin) != length)
            return 1;
        if (!request_parse((struct span){text, length}, &request, reason))
            printf("-\n");
        else
            printf("%s %d %" PRIu64 " %" PRIu64 " %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %d\n", request.container,
                   (int)request.kind, request.memory_mib, request.fraction.digits, request.fraction.places,
                   request.at_most_mib, request.devices, request.cores, request.priority, request.region_is_mounted);
        free(text);
    }
    return 0;
}
