/*
 * The clock of devices and of what waits for them. Real, it is the monotonic clock. As a model, time stands still while
 * any thread that takes part is running, and when all of them sleep it jumps to the first one's waking: a minute of model
 * time takes as long as what happens in it takes to compute, and nothing depends on how fast this machine is.
 *
 * A thread takes part from clock_join to clock_leave; any other that sleeps takes part while it sleeps.
 */
#pragma once

#include "state.h"

struct timeline_file;

/* Says which clock; the model's is in the file. */
void clock_use_real(void);
void clock_use_model(const struct attachment *attachment, struct timeline_file *file);

uint64_t clock_now_ns(void);
void clock_sleep_until_ns(uint64_t wake_ns);
void clock_join(void);

/* Whether time cannot pass before this thread sleeps. */
bool clock_stands_still(void);
void clock_leave(void);
