/* Which devices CUDA enumerates, and in which order. */
#pragma once

#include "../common/config.h"

/*
 * Writes positions in config->device, as CUDA numbers them, and returns how many.
 *
 * order is CUDA_DEVICE_ORDER: PCI_BUS_ID, else the fastest first (by multiprocessors and clock, then by PCI address).
 * visible is CUDA_VISIBLE_DEVICES or NULL: a list of numbers in that order, "GPU-" UUIDs or beginnings of them that fit
 * one device only, and "MIG-" UUIDs. It ends at the first entry that names no device; a device named twice leaves none;
 * a MIG device ends the list, since CUDA enumerates one at a time. Source: CUDA Programming Guide, "CUDA Environment
 * Variables"; that a number may have letters behind it and a repetition means none is how drivers behave.
 */
int visible_devices(const struct config *config, const char *order, const char *visible, int chosen[MAX_DEVICES]);
