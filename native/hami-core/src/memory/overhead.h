/* Device memory whose size no API tells: contexts, modules, stacks and heaps. One figure a process and device: what NVML books for
 * this process less what is charged for it otherwise, where its PID on the node is known; else an estimate for each context.
 *
 * The figure has two parts. Known is what calls that make or load something were seen to take, or the estimate until NVML tells; it
 * goes when those things go. Found is what is there beside that when memory is about to be refused: code that was loaded late, and
 * the driver's rounding. It is given back as soon as something goes that it may have belonged to, and found again before the next
 * refusal. */
#ifndef OVERHEAD_H
#define OVERHEAD_H

#include "../container.h"

#pragma GCC visibility push(hidden)

/* What NVML books for this process beside its other charges, before a call. Managed memory is charged in full and may not be on the
 * card: with it the figure may be negative, and only differences mean something. */
struct overhead_mark {
    bool known; /* false: NVML does not know this process, or its PID on the node is not known */
    int64_t beside;
};

struct overhead_mark overhead_mark(unsigned device);

/* After the call that followed the mark: bytes that its object takes now, of which `had` were known before. */
uint64_t overhead_changed(unsigned device, const struct overhead_mark *before, uint64_t had);

/* Something is gone of which `had` bytes were known. */
void overhead_gone(unsigned device, uint64_t had);

/* A context that is about to be made: its estimate is charged. */
struct overhead_context {
    struct charge charge;
    struct overhead_mark before;
};

/* CUDA_ERROR_OUT_OF_MEMORY: the container has no room for a context. */
CUresult overhead_before_context(struct payer payer, struct overhead_context *context);

/* After the driver's answer. Bytes that are known of it. */
uint64_t overhead_after_context(const struct overhead_context *context, CUresult result);

/* A context is gone of which `had` bytes were known, and what was in it has been given back. */
void overhead_context_gone(unsigned device, uint64_t had);

/* Around a call of the driver that may take more than is charged for it, until that is charged too. */
static inline void overhead_grows(unsigned device)
{
    __atomic_fetch_add(&process->holdings.growing[device], 1, __ATOMIC_ACQ_REL);
}

static inline void overhead_grew(unsigned device)
{
    __atomic_fetch_sub(&process->holdings.growing[device], 1, __ATOMIC_ACQ_REL);
}

/* A query: if contexts were estimated and NVML may tell what they take by now, it is asked, at most once a second. */
void overhead_replace_estimates(unsigned device);

/* Memory is about to be refused. */
void overhead_settle(unsigned device);

/* An allocation of so many bytes was freed, and with it the rest of the driver's last piece of 2 MiB. */
void overhead_rounding_gone(unsigned device, uint64_t bytes);

/* MiB of an empty context on a card of this compute capability: approximate, from what nvidia-smi shows for one. */
uint64_t overhead_estimate_mib(int major, int minor);

#pragma GCC visibility pop

#endif
