#include "faults.h"

#include "message.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 16 };

static struct {
    char call[64];
    bool prefix;
    int code;
    unsigned long only, most_us;
    atomic_ulong calls;
} faults[MOST];
static atomic_int count;

static bool parse(const char *text) {
    char action[16], rest[64];
    int index = atomic_load(&count);
    if (index == MOST || sscanf(text, " %63[A-Za-z0-9_*]=%15[a-z]:%63s", faults[index].call, action, rest) != 3) {
        return false;
    }
    size_t length = strlen(faults[index].call);
    faults[index].prefix = faults[index].call[length - 1] == '*';
    if (faults[index].prefix) {
        faults[index].call[length - 1] = '\0';
    }
    int used = 0;
    faults[index].code = 0;
    faults[index].only = faults[index].most_us = 0;
    bool error = strcmp(action, "error") == 0 && (sscanf(rest, "%d@%lu%n", &faults[index].code, &faults[index].only, &used) == 2 ||
                                                  sscanf(rest, "%d%n", &faults[index].code, &used) == 1);
    bool sleeps = strcmp(action, "sleep") == 0 && sscanf(rest, "%lu%n", &faults[index].most_us, &used) == 1;
    atomic_store(&faults[index].calls, 0);
    if ((!error && !sleeps) || rest[used] != '\0') {
        return false;
    }
    atomic_store(&count, index + 1);
    return true;
}

bool faults_set(const char *text) {
    static char set[1024];
    text = text == NULL ? "" : text;
    if (strlen(text) >= sizeof set) {
        message("faults: longer than 1023 bytes");
        return false;
    }
    if (strcmp(text, set) == 0) {
        return true; /* the configuration is read more than once, and the calls are counted on */
    }
    atomic_store(&count, 0);
    set[0] = '\0';
    char copy[sizeof set];
    strcpy(copy, text);
    char *rest = copy;
    for (char *entry; (entry = strsep(&rest, ";")) != NULL;) {
        if (*entry != '\0' && !parse(entry)) {
            message("faults: '%s': expected CALL=error:CODE, CALL=error:CODE@N or CALL=sleep:MICROSECONDS, at most %d",
                    entry, MOST);
            return false;
        }
    }
    strcpy(set, text);
    return true;
}

static void sleep_up_to(unsigned long most_us) {
    static _Thread_local unsigned seed;
    seed = seed == 0 ? (unsigned)(uintptr_t)&seed ^ (unsigned)time(NULL) : seed;
    unsigned long us = most_us == 0 ? 0 : (unsigned long)rand_r(&seed) % (most_us + 1);
    struct timespec time = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

int fault_of(const char *call) {
    int code = 0;
    for (int i = 0; i < atomic_load_explicit(&count, memory_order_relaxed); i++) {
        bool named = faults[i].prefix ? strncmp(call, faults[i].call, strlen(faults[i].call)) == 0
                                      : strcmp(call, faults[i].call) == 0;
        if (!named) {
            continue;
        }
        unsigned long number = atomic_fetch_add(&faults[i].calls, 1) + 1;
        sleep_up_to(faults[i].most_us);
        if (code == 0 && (faults[i].only == 0 || faults[i].only == number)) {
            code = faults[i].code;
        }
    }
    return code;
}
