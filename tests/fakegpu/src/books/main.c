/*
 * fakegpu-books: what every living process holds, by device and kind, as JSON on standard output. It also makes the state
 * file if there is none, so that the PID namespace it is run in is the host's.
 */
#include "../common/config.h"
#include "../common/shared.h"
#include "../common/state.h"

#include <inttypes.h>
#include <stdio.h>

static void print_process(const struct attachment *attachment, int slot, int device) {
    const struct process_slot *process = &attachment->state->slot[slot];
    const struct slot_device *books = &process->device[device];
    printf("{\"pid\": %d, \"host_pid\": %u, \"contexts\": %u, \"bytes\": %" PRIu64 ", \"requested_bytes\": %" PRIu64
           ", \"by_kind\": {",
           atomic_load(&process->pid), state_host_pid(attachment, slot), atomic_load(&books->contexts),
           state_process_bytes(attachment, device, slot), atomic_load(&books->requested_bytes));
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        printf("%s\"%s\": %" PRIu64, kind > 0 ? ", " : "", memory_kind_name[kind], atomic_load(&books->by_kind[kind]));
    }
    printf("}}");
}

static void print_device(const struct attachment *attachment, int device) {
    const struct state_device *card = &attachment->state->device[device];
    printf("{\"uuid\": \"%s\", \"memory_bytes\": %" PRIu64 ", \"reserved_bytes\": %" PRIu64
           ", \"used_bytes\": %" PRIu64 ", \"shared_bytes\": %" PRIu64 ", \"processes\": [",
           card->uuid, card->memory_bytes, card->reserved_bytes, state_used(attachment, device),
           shared_used(attachment, device));
    int slots = (int)atomic_load(&attachment->state->slots_used);
    const char *separator = "";
    for (int slot = 0; slot < slots; slot++) {
        bool holds = state_process_bytes(attachment, device, slot) != 0 ||
                     atomic_load(&attachment->state->slot[slot].device[device].contexts) != 0;
        if (holds && state_slot_lives(attachment, slot)) {
            printf("%s", separator);
            print_process(attachment, slot, device);
            separator = ", ";
        }
    }
    printf("]}");
}

int main(void) {
    static struct config config;
    static struct attachment attachment;
    if (config_load(&config) != CONFIG_OK || !state_open(&attachment, &config)) {
        return 2;
    }
    printf("{\"devices\": [");
    for (int i = 0; i < config.device_count; i++) {
        printf("%s", i > 0 ? ",\n " : "");
        print_device(&attachment, attachment.device_index[i]);
    }
    printf("]}\n");
    return 0;
}
