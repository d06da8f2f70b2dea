/* Which device of the driver is which in the region. A device is known by its UUID as the driver gives it, never by an index of
 * another numbering: CUDA's order depends on CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, NVML's does not. */
#ifndef DEVICES_H
#define DEVICES_H

#include "driver_abi.h"
#include "limits.h"
#include "region.h"

enum { DEVICE_NONE = REGION_DEVICES };

/* Asks CUDA for its devices. An error is the driver's own, such as CUDA_ERROR_NOT_INITIALIZED. */
CUresult devices_discover(void);

/* Finds the devices in the region, and writes those that are missing: index i is NVML's order in the container; a device that NVML
 * does not list (a MIG instance, or no NVML) comes behind. `stamp` is called under the region's gate for each index about to be
 * written. False: reason[REASON_BYTES]. */
typedef bool device_stamp(struct region_file *file, unsigned index, char *reason);
bool devices_register(struct region *region, device_stamp *stamp, char *reason);

/* Memory of the card at a region index: NVML's figure out of the region if CUDA's makes it plausible, else from NVML itself. */
struct card devices_card(const struct region_file *file, unsigned index);

/* The region index of a CUDA device, DEVICE_NONE if it has none. */
unsigned device_index(CUdevice device);

/* The CUDA device of a region index that is visible, and its UUID. */
CUdevice device_handle(unsigned index);
const char *device_uuid(unsigned index);

/* The region index of a UUID among the first `count`, DEVICE_NONE if it is not there. */
unsigned device_index_of_uuid(const char (*uuids)[REGION_UUID_BYTES], uint64_t count, const char *uuid);

/* A CUDA device with this region index is there. */
bool device_is_visible(unsigned index);

#endif
