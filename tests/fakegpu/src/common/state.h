/*
 * The state file: what every process that shares this fake machine holds of each card.
 *
 * A process owns one slot, by a record lock on a byte of the file's companion "<state>.lock". The kernel drops that
 * lock at death, so whatever a slot says counts only while its byte is locked. Nothing derived is stored: what a card
 * has in use is the sum over the living slots, and a process writes its own slot only. So there is no lock between
 * processes, a kill at any instruction leaves nothing to repair, and a stopped process holds up nobody.
 */
#pragma once

#include "config.h"
#include "mapped.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MAX_PROCESSES = 1024 };

/* What memory is held for; the books show it by these. */
enum memory_kind {
    MEMORY_CONTEXT,
    MEMORY_LINEAR,  /* cuMemAlloc and cuMemAllocPitch */
    MEMORY_MANAGED, /* resident part of cuMemAllocManaged */
    MEMORY_ARRAY,
    MEMORY_POOL,    /* what stream-ordered pools reserve */
    MEMORY_GRAPH,   /* what graph memory nodes reserve */
    MEMORY_VIRTUAL, /* cuMemCreate */
    MEMORY_MODULE,  /* code and globals of modules and libraries, printf and malloc heaps */
    MEMORY_KINDS
};

extern const char *const memory_kind_name[MEMORY_KINDS];

struct slot_device {
    _Atomic uint64_t by_kind[MEMORY_KINDS]; /* bytes */
    _Atomic uint64_t requested_bytes; /* by living cuMemAlloc blocks, before rounding */
    _Atomic uint32_t contexts;
};

struct process_slot {
    _Atomic uint64_t image; /* 8 bytes of AT_RANDOM: another program after exec has others; 0 = never used */
    _Atomic int32_t pid;    /* in its own PID namespace */
    _Atomic int32_t host_pid; /* 0 = not known yet */
    _Atomic uint64_t pid_namespace;
    struct slot_device device[MAX_DEVICES];
};

struct state_device {
    char uuid[UUID_TEXT];
    uint64_t memory_bytes, reserved_bytes;
};

struct state {
    struct mapped_header header;
    uint64_t host_pid_namespace; /* of the process that made the file */
    uint64_t shared_folder;      /* inode of "<state>.shared" */
    _Atomic uint32_t shared_ever; /* whether to look into it at all */
    _Atomic uint32_t device_count;
    _Atomic uint32_t slots_used; /* slots from here on were never used */
    struct state_device device[MAX_DEVICES];
    /* Bytes a slot holds of a device, and those that it asks for at this moment; by device first, to sum quickly. */
    _Alignas(64) _Atomic uint64_t held[MAX_DEVICES][MAX_PROCESSES];
    _Alignas(64) _Atomic uint64_t asked[MAX_DEVICES][MAX_PROCESSES];
    /* Of what a slot's process holds, what is counted by its file in "<state>.shared" instead of in held. */
    _Alignas(64) _Atomic uint64_t shared[MAX_DEVICES][MAX_PROCESSES];
    _Alignas(64) struct process_slot slot[MAX_PROCESSES];
};

/* This process's view of the state. */
struct attachment {
    struct state *state;
    char shared_path[PATH_MAX];
    int lock_fd;
    int slot;                      /* -1: a reader only */
    int device_index[MAX_DEVICES]; /* position in state.device of each device of the configuration */
};

/* Maps the state file, and makes it if it does not exist. False, with a line on stderr, if that cannot be done. */
bool state_open(struct attachment *attachment, const struct config *config);

/* Takes a slot for this process, or joins the one that another copy of this library in this process took. */
bool state_join(struct attachment *attachment);

/* Bytes of a card that CUDA can hand out. */
uint64_t state_capacity(const struct attachment *attachment, int device);

/* Bytes that living processes hold of it. */
uint64_t state_used(const struct attachment *attachment, int device);

/* Bytes that one slot's process holds of it. */
uint64_t state_process_bytes(const struct attachment *attachment, int device, int slot);

/* False if the card has less left. */
bool state_take(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes);
void state_give(const struct attachment *attachment, int device, enum memory_kind kind, uint64_t bytes);

void state_count_context(const struct attachment *attachment, int device, int change);

/* For short changes of what processes share; a holder's death ends it. The bytes are the state's lock file's. */
enum { CLOCK_BYTE = 1, FIRST_TIMELINE_BYTE = 2000 };
void state_lock(const struct attachment *attachment, int byte);
void state_unlock(const struct attachment *attachment, int byte);

/* 8 bytes that tell this program's run from any other. */
uint64_t state_image_mark(void);

/*
 * Whether a slot's process lives. For a reader in the host's PID namespace this also learns its host PID; a process in
 * another namespace is known to readers there by what such a reader left in the slot.
 */
bool state_slot_lives(const struct attachment *attachment, int slot);

/*
 * The PID that NVML gives for a living slot: the host's, or, as long as no reader on the host has looked, a number
 * above every possible PID (4194304 + slot + 1).
 */
unsigned state_host_pid(const struct attachment *attachment, int slot);
