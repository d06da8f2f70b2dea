/* The file `request`: what the pod's author asked for, before any arithmetic. One `key=value` a line, each key once; unknown keys
 * are left for newer versions. */
#ifndef REQUEST_H
#define REQUEST_H

#include "kai.h"
#include "text.h"

enum { CONTAINER_NAME_BYTES = 64, REASON_BYTES = 256 };

enum memory_request {
    MEMORY_MIB,      /* memory=<n>m */
    MEMORY_FRACTION, /* fraction=<decimal> */
    MEMORY_NONE,     /* memory=none: an administrator's exemption */
};

struct request {
    char container[CONTAINER_NAME_BYTES];
    enum memory_request kind;
    uint64_t memory_mib;
    struct fraction fraction;
    uint64_t at_most_mib; /* 0: not given */
    uint64_t devices;     /* 1 if not given */
    uint64_t cores;       /* percent, 100 if not given */
    uint64_t priority;    /* 1 if not given */
    bool region_is_mounted; /* region=hostPath: `containers` itself is this container's directory, not a volume with one in it */
    char unknown_key[32]; /* the first one, empty if there is none */
};

/* False: not valid, and reason[REASON_BYTES] names the key, its value and what is accepted. */
bool request_parse(struct span text, struct request *request, char *reason);

#endif
