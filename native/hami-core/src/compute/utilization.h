/* How busy this container keeps a card, by NVML. */
#ifndef UTILIZATION_H
#define UTILIZATION_H

#include <stdbool.h>
#include <stdint.h>

/* Percent of NVML's last sample period, the sum over the container's processes; what each did goes into its slot as `sm_util`.
 * *seen is NVML's time of the newest sample that counted, in and out. False: nothing new, or not to be known, since a process's PID
 * on the node is not known or the card does not tell (MIG). */
bool utilization_of_container(unsigned device, uint64_t *seen, unsigned *percent);

#endif
