# ruff: noqa: E501 - the texts are lines of the source
"""Small wrong changes to the library, one for each property that it must have: `make check` has to notice every one.

Run by `make mutants` (or `python tests/mutants.py [NAME …]`). Each is applied alone to a copy, the copy is built, and the tests that
are named with it are run up to the first that fails: a mutant that survives is an error, as is one whose text is no longer in the
source. The same tests must pass without a change.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
FAKEGPU = HERE.parents[1] / "tests" / "fakegpu"
BUILD_SECONDS, TEST_SECONDS, CONTROL_SECONDS = 300, 300, 1200


@dataclass(frozen=True)
class Mutant:
    """One wrong change: `old` becomes `new` in `file`, and a test whose file or name contains one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant("a release that is lost", "memory/linear.c", "    else\n        give_back(record);",
           "    else if (0)\n        give_back(record);", "capping"),
    Mutant("a failed allocation that stays charged", "memory/linear.c",
           "    if (result != CUDA_SUCCESS)\n        charge_give_back(charge);\n    return result;", "    return result;", "card_has_free null_pointers"),
    Mutant("a failed free that is given back", "memory/linear.c", "    if (result != CUDA_SUCCESS)\n        records_add(linear(), *record);",
           "    if (0)\n        records_add(linear(), *record);", "failed_free"),
    Mutant("a limit of one byte too much", "ledger.c", "seen.total > limit_bytes - (uint64_t)delta", "seen.total > limit_bytes - (uint64_t)delta + 1",
           "test_ledger"),
    Mutant("a check before the step and none in it", "ledger.c",
           "        if (delta > 0 && ((uint64_t)delta > limit_bytes || seen.total > limit_bytes - (uint64_t)delta))\n            return false;\n",
           "        if (delta > 0 && sequence && where->total > limit_bytes - (uint64_t)delta && seen.total == where->total + 1)\n            return false;\n",
           "test_ledger"),
    Mutant("a tag that is not handed on", "ledger.c", "        help(books, slot, device, seen.tag);\n", "", "crash test_ledger"),
    Mutant("a lane that is settled before the swap", "ledger.c", "    } while (!compare_and_swap16(where, seen, wanted));\n    settle(lane, sequence, delta);",
           "        if (lane->settled < sequence)\n            settle(lane, sequence, delta);\n    } while (!compare_and_swap16(where, seen, wanted));",
           "crash test_ledger"),
    Mutant("a recovery that forgets the step under way", "ledger.c", "    if (committed || load(&lane->helped) >= sequence)\n", "    if (0)\n",
           "crash test_ledger"),
    Mutant("a total below zero", "ledger.c", "return value > back ? value - back : 0;", "return value - back;", "below_zero"),
    Mutant("the dead are not reaped before a refusal", "charge.c", "    settle_and_trim(device);\n    reap();\n", "    settle_and_trim(device);\n",
           "dead_process"),
    Mutant("cached memory is not given back before a refusal", "charge.c", "    settle_and_trim(device);\n    reap();\n", "    reap();\n",
           "cached_memory graphs"),
    Mutant("limits are not read before a refusal", "charge.c", "    container_refresh();\n", "", "limits_follow"),
    Mutant("refusals are not counted", "charge.c", "    __atomic_fetch_add(&device->refusals, 1, __ATOMIC_RELAXED);\n", "", "reads_as_the_page"),
    Mutant("a line for every refusal", "charge.c", "    if ((before && now - before < NANOSECONDS_A_SECOND) ||", "    if ((0) ||", "not_too_often"),
    Mutant("free above what the card has", "share.h", "return left < card_free ? left : card_free;", "return left + 0 * card_free;", "card_has_free"),
    Mutant("free below zero", "share.h", "uint64_t left = limit > used ? limit - used : 0;", "uint64_t left = limit - used;", "limits_follow"),
    Mutant("total above the card", "share.h", "return limit < card_total ? limit : card_total;", "return limit + 0 * card_total;", "above_the_card exempted"),
    Mutant("a child of fork with its parent's slot", "container.c", "MADV_WIPEONFORK) != 0)\n        mine->owner = (uint32_t)getpid();",
           "MADV_NORMAL) != 0)\n        mine->owner = (uint32_t)getpid();", "children"),
    Mutant("KAI's file above the request", "limits.c", "limit = smaller(files->kai_bytes, most_by_kai(request, card));", "limit = files->kai_bytes;", "test_limits"),
    Mutant("KAI's file is ignored", "limits.c", "    if (files->has_kai)\n        limit", "    if (0)\n        limit", "test_limits"),
    Mutant("at-most is ignored", "limits.c", "return request->at_most_mib ? smaller(limit, request->at_most_mib * MIB) : limit;", "return limit;", "test_limits"),
    Mutant("a portion that is rounded down", "kai.c", "return (double)whole < value ? whole + 1 : whole;", "return whole;", "test_kai"),
    Mutant("halves away from even", "kai.c", "(rest == half && (whole & 1))", "(rest == half)", "test_kai"),
    Mutant("limits that vanish are no limits", "container.c", "    if (valid) {\n        files = read;", "    if (valid || answer != LIMITS_INVALID) {\n        files = read;",
           "limits_follow"),
    Mutant("a missing library file is unmanaged", "limits.c", "if (error == ENOENT && file_status(library, &status))", "if (error == ENOENT)", "file_that_is_gone"),
    Mutant("the environment counts in a managed container", "environment.c", 'static const char name[] = "ISOLATOR_MEMORY_LIMIT";',
           'static const char name[] = "CUDA_DEVICE_MEMORY_LIMIT";', "own_limit environment_raises"),
    Mutant("a value that cannot be read is no limit", "environment.c", "return own_reading == SIZE_NONE && common_reading == SIZE_NONE;", "return true;", "one_way"),
    Mutant("a second allowance beside a removed region", "region.c", "        if (attached < 0)\n            opened = make(region, reason);", "        if (attached < 0 || 1)\n            opened = make(region, reason);",
           "removed_region"),
    Mutant("HAMi-core's processes are not looked for", "region.c", "if (magic == HAMI_MAGIC && (living", "if (0 && (living", "living_hami"),
    Mutant("a sparse region", "region.c", "int error = posix_fallocate(file, 0, sizeof(struct region_file));", "int error = ftruncate(file, sizeof(struct region_file));", "full_volume"),
    Mutant("a lost lock is death", "slot.c", "state_of(slot) == SLOT_USED && lost_its_lock(region, slot, self)", "0", "closes_every"),
    Mutant("what was before exec lives on", "slot.c", "        return false; /* left from before exec */", "        return true;", "executes_another"),
    Mutant("pools are charged with what was asked for", "memory/pools.c", "        pool->at_most = reserved;\n        return reserved;", "        return pool->pieces;", "pool"),
    Mutant("a destroyed pool that outlives the primary context", "memory/pools.c", "return primary;", "return primary && false;", "own_pools"),
    Mutant("a pool that could not be asked is another", "memory/pools.c", "(pool->handle != handle || !handle)", "(pool->handle != handle || pool->by_pointers)",
           "once_could_not"),
    Mutant("captured allocations are charged", "memory/pools.c", "process->attachment == UNCOUNTED || is_capturing(call)", "process->attachment == UNCOUNTED", "graphs"),
    Mutant("memory of a handle goes with the handle", "memory/virtual.c",
           "record.owner == 1 && records_take(handles(), handle, &record)", "records_take(handles(), handle, &record)", "virtual_memory"),
    Mutant("a mapping that is not counted", "memory/virtual.c", "result == CUDA_SUCCESS && note_use(0, ptr, size, handle) != CUDA_SUCCESS", "0", "virtual_memory"),
    Mutant("a context's memory outlives it", "memory/contexts.c", "    linear_gone_with(context);\n", "", "contexts"),
    Mutant("a primary context goes with the first release", "memory/contexts.c", "if (*primary && !primary_is_active(device))", "if (*primary)", "contexts"),
    Mutant("rounding that is freed while it is looked for", "memory/overhead.c", "    __atomic_store_n(&overhead->found, before ? before : 1, __ATOMIC_SEQ_CST);\n",
           "", "freed_at_any_instruction"),
    Mutant("overhead is its card's only with a context", "memory/overhead.c", "    overhead->charge.payer.device = (unsigned)",
           "    if (overhead->contexts)\n        overhead->charge.payer.device = (unsigned)", "without_a_context_that_is_known"),
    Mutant("contexts cost nothing", "memory/overhead.c", "return charge_take(&context->charge, payer, CHARGE_OVERHEAD, estimate(device_handle(payer.device)));",
           "return charge_take(&context->charge, payer, CHARGE_OVERHEAD, 0);", "contexts"),
    Mutant("what is there anyway is a context's cost", "memory/overhead.c", "        context->before = overhead_mark(payer.device);",
           "        context->before.known = true;", "what_was_found"),
    Mutant("late code that stays when its module goes", "memory/overhead.c", "    if (overhead->found > 0 && !find(overhead, device, &found))\n        found = 0;",
           "    found = overhead->found;", "what_was_found late_code"),
    Mutant("rounding that stays when its memory goes", "memory/linear.c", "        overhead_rounding_gone(record->device, record->bytes);", "        ;", "what_was_found"),
    Mutant("pools that grow are overhead", "memory/overhead.c", "if (!grows && !is_growing(device) && steps_after == steps)",
           "if ((grows | true) && !(is_growing(device) & false) && steps_after == steps)", "pools_that_grow"),
    Mutant("memory of another namespace is overhead", "memory/overhead.c", "        held += ledger_held(&file->extension, slot, device);\n", "", "another_namespace"),
    Mutant("a lowered limit of a context stays charged", "memory/overhead.c", "(grown(device, before, overhead->charge.bytes, &growth) ? growth : 0);",
           "(grown(device, before, overhead->charge.bytes, &growth) && growth > 0 ? growth : 0);", "limits_of_a_context"),
    Mutant("a context's limits outlive it", "memory/modules.c", "                                                            .owner = (uintptr_t)payer->context});\n}\n\nstatic CUresult unloaded",
           "                                                            .owner = 1});\n}\n\nstatic CUresult unloaded", "limits_of_a_context"),
    Mutant("an estimate for ever", "memory/overhead.c", "        overhead->known = seen + kept;\n", "", "estimate"),
    Mutant("an estimate that outlives its context", "memory/overhead.c", "less(overhead->estimated, estimated ? had : 0)", "less(overhead->estimated, 0)", "that_is_gone"),
    Mutant("graph memory that outlives its context", "memory/contexts.c", "    graphs_settle();\n", "", "graph_memory"),
    Mutant("a green context's memory outlives the primary one", "charge.c", "    return primary ? primary : context;", "    return primary ? context : context;", "green"),
    Mutant("an unloaded module stays charged", "memory/modules.c", "        overhead_gone(record->device, record->bytes);", "        (void)record;", "modules"),
    Mutant("a module that outlives its context", "memory/contexts.c", "    modules_gone_with(context);\n", "", "modules_end"),
    Mutant("managed memory that hides modules", "memory/overhead.c", "mark.known = look(device, &mark.beside);", "mark.known = !holds_managed(device) && look(device, &mark.beside);",
           "managed_memory limits_of_a_context"),
    Mutant("the first device pays for all", "devices.c", "        if (devices[i].handle == device)\n            return devices[i].index;",
           "        if (devices[i].handle == device || i == 0)\n            return devices[0].index;", "devices other_card"),
    Mutant("NVML's structure in another order", "driver_abi.h", "    unsigned long long reserved;\n    unsigned long long free;\n",
           "    unsigned long long free;\n    unsigned long long reserved;\n", "nvidias_headers"),
    Mutant("the form of NVML's list that differs between drivers", "nvml_cards.c", "nvml.nvmlDeviceGetComputeRunningProcesses_v2(device, &count, list)",
           "nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list)", "newest_entries"),
    Mutant("the node's processes are listed", "queries_nvml.c", "    listing.ask_driver = view.limit == LIMIT_NONE;\n", "    listing.ask_driver = true;\n",
           "nvml_lists detailed_list"),
    Mutant("a version of NVML's list that is not known", "queries_nvml.c", "if (plist->version != nvmlProcessDetailList_v1)", "if (0)", "fails_as_the_drivers"),
    Mutant("a graph that is uploaded when it is made", "memory/graphs.c", "if (!params || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))",
           "if (!params || params->flags <= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)", "every_way_to_instantiate"),
    Mutant("a first form that gives nothing back", "memory/linear.c", "    result = cuda.cuMemFree(dptr);\n    linear_departed(&departure, result);",
           "    result = cuda.cuMemFree(dptr);\n    (void)departure;", "first_forms"),
    Mutant("a context that ends with its first detach", "memory/contexts.c", "        records_refer(contexts(), (uintptr_t)*pctx, 1, &record);", "        (void)record;",
           "every_form_of_a_context"),
    Mutant("a pitch as it was guessed", "memory/linear.c", "    result = cuda.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);\n    if (result == CUDA_SUCCESS)",
           "    result = cuda.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);\n    if (0)", "a_pitch_is_charged"),
    Mutant("pools that shrink are not looked at again", "charge.c", "    settle_for_query(device);\n", "", "pool_is_charged"),
    Mutant("memory of the host is a card's", "charge.c", "    *payer = (struct payer){DEVICE_NONE, NULL};\n    return container_enter();\n}", "    return charge_device(0, payer);\n}",
           "virtual_memory the_host_none"),
    Mutant("an estimate that is not said to be one", "memory/overhead.c", "    container_mark_estimated(any);\n", "    (void)any;\n", "where_the_pid"),
    Mutant("a refusal by another error", "charge.c", "return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;", "return taken ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;",
           "processes_of_a_container"),
    Mutant("what was never seen is not freed", "memory/linear.c", "    result = cuda.cuMemFree_v2(dptr);\n    linear_departed",
           "    result = departure.known ? cuda.cuMemFree_v2(dptr) : CUDA_SUCCESS;\n    linear_departed", "never_saw"),
    Mutant("managed memory that nobody asked for", "memory/linear.c", 'return value && strcmp(value, "true") == 0 && cuda', "return !value && cuda", "card_has_not"),
    Mutant("a region of another version is used", "region.c", "header->version == EXTENSION_VERSION &&", "header->version > 0 &&", "another_version"),
    Mutant("a managed container without a region is not counted", "container.c", "if (answer == LIMITS_UNMANAGED && !opened &&", "if (!opened &&", "without_a_volume"),
    Mutant("a closed pipe ends the program", "message.c", "signals_mask(SIG_BLOCK, &pipe_only, &before);", "signals_mask(SIG_BLOCK, NULL, &before);", "closed_pipe"),
    Mutant("a full pipe is waited for", "message.c", "    if (poll(&output, 1, 0) != 1 || !(output.revents & POLLOUT))\n        return;\n", "    (void)output;\n",
           "full_pipe"),
    Mutant("a region is believed of the card", "devices.c", "card.nvml_total == 0 || plausible(card.nvml_total, card.cuda_total)", "card.nvml_total == 0 || plausible(card.nvml_total, card.cuda_total) || 1",
           "makes_a_card_larger"),
    Mutant("a file of ours for the program's output", "region.c", "    if (file < 0 || file > STDERR_FILENO)\n", "    if (1)\n", "without_standard_streams"),
    Mutant("what cannot be noted stays with the driver", "memory/linear.c", "        cuda.cuMemFree_v2(pointer);\n        result = CUDA_ERROR_OUT_OF_MEMORY;",
           "        result = CUDA_ERROR_OUT_OF_MEMORY;", "cannot_be_noted"),
    Mutant("graphs within graphs take nothing", "memory/graphs.c", "cuda.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS && add_nodes(child, sum)", "false && add_nodes(child, sum)",
           "what_is_in_it"),
    Mutant("a graph that shares memory is charged twice", "memory/graphs.c", "            graph->bytes[device] = kept->bytes;\n", "            (void)0;\n", "what_is_in_it"),
    Mutant("a context that stays current", "memory/contexts.c", "    cuda.cuCtxPopCurrent_v2(&popped);\n", "    (void)popped;\n", "context_that_is_not_known"),
    Mutant("others' captures are disturbed", "quiet.h", "quiet.changed = cuda.cuThreadExchangeStreamCaptureMode(&quiet.before) == CUDA_SUCCESS;", "", "captures"),
    Mutant("a name is enough to be the driver's", "hooks.c", "return address && address == *driver_function(hook) ? hook_wrapper(hook) : address;",
           "return address ? hook_wrapper(hook) : address;", "lookup"),
    Mutant("exports that are seen without a driver", "dlsym.c", "    if (address == hook_wrapper(hook))\n        return (struct route){NULL, without_us(ask, hook, name)};\n",
           "", "lookup"),
    Mutant("records that end a probe", "records.c", "if (((at - wanted) & mask) >= ((at - hole) & mask)) {", "if (0) {", "records"),
    Mutant("managed memory costs nothing", "memory/linear.c", "begin_as(CHARGE_MANAGED, &charge, bytesize)", "begin_as(CHARGE_MANAGED, &charge, 0)",
           "linear"),
    Mutant("arrays cost nothing", "memory/arrays.c", "    return told ? bytes : computed(descriptor, levels);", "    return told ? 0 : 0;", "arrays"),
    Mutant("arrays whose size is not told cost nothing", "memory/arrays.c", "return told ? bytes : computed(descriptor, levels);", "return told ? bytes : 0;", "does_not_tell"),
    Mutant("arrays outlive their context", "memory/contexts.c", "    arrays_gone_with(context);\n", "", "contexts"),
    Mutant("a retained handle that is not counted", "memory/virtual.c",
           "    result = cuda.cuMemRetainAllocationHandle(handle, addr);\n    if (result == CUDA_SUCCESS)\n        records_refer(handles(), *handle, 1, &record);",
           "    result = cuda.cuMemRetainAllocationHandle(handle, addr);\n    (void)record;", "virtual_memory"),
    Mutant("an imported handle that is not counted", "memory/virtual.c",
           "if (result == CUDA_SUCCESS && records_refer(handles(), *handle, 1, &record))", "if (result == CUDA_SUCCESS && records_find(handles(), *handle, &record))",
           "imported_handles"),
    Mutant("a multicast object that ends and keeps what was bound", "memory/virtual.c", "    if (record->kind != HANDLE_MEMORY)\n        unrefer_all", "    if (0)\n        unrefer_all",
           "multicast"),
    Mutant("an unbind for every device", "memory/virtual.c", "return (uint64_t)device << DEVICE_SHIFT | offset;", "return (uint64_t)(device & 0) << DEVICE_SHIFT | offset;", "multicast"),
    Mutant("a piece of an array that keeps its first memory", "memory/virtual.c", "    if (replaced)\n        unrefer(before.handle);", "    (void)replaced;", "sparse_arrays"),
    Mutant("all pieces of an array are one", "memory/virtual.c", "piece = piece_of(info);", "piece = piece_of(info) & 0;", "sparse_arrays"),
    Mutant("an unmap that gives back one mapping", "memory/virtual.c", "    while (mappings_take(&process->holdings.mappings, space",
           "    if (mappings_take(&process->holdings.mappings, space", "virtual_memory"),
    Mutant("graphs are launched before there is room", "memory/graphs.c", "    if (result == CUDA_SUCCESS)\n        result = ask(exec, stream);",
           "    result = ask(exec, stream);", "graphs"),
    Mutant("graph memory that is never given back", "memory/graphs.c", "    cuda.cuDeviceGraphMemTrim(device_handle(device));\n", "", "graphs"),
    Mutant("queries ask a lock file that was closed", "container.c", "        region_keep_lock_file(&container.region, reason);\n", "        (void)reason;\n", "nvml_lists"),
    Mutant("a MIG instance is a card", "devices.c", "instance ? \"MIG\" : \"GPU\"", "instance ? \"GPU\" : \"GPU\"", "mig_instance"),
    Mutant("memory that outlives its graph is there for the next", "memory/graphs.c", "    return kept > used ? kept - used : 0;",
           "    used = 0;\n    return kept > used ? kept - used : 0;", "outlives"),
    Mutant("a captured release frees at once", "memory/pools.c", "    if (captures_touch(stream, per_thread))\n        return ask(pointer, stream); /* becomes a node of a graph */\n",
           "    (void)per_thread;\n", "outlives"),
    Mutant("a pool of the first device", "memory/pools.c", "charge_by_place(poolProps->allocType, poolProps->location, &nothing)",
           "charge_by_place(poolProps->allocType, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0}, &nothing)", "other_card"),
    Mutant("a default pool of the stream's device", "memory/pools.c", "if (!handle || !charge_by_driver(handle, &nothing)) {", "if (!handle || !charge_by_driver(handle, &nothing) || 1) {",
           "other_card device_of_a_pool"),
    Mutant("managed pools that NVML's figure is compared with", "memory/pools.c", "        count_if_managed(pool, 1);\n", "", "managed_pools"),
    Mutant("managed pools are nobody's", "memory/pools.c", "(nothing->payer.device != DEVICE_NONE || !managed)", "true",
           "managed_pools"),
    Mutant("a stream of the current context", "memory/contexts.c", "    if ((uintptr_t)stream <= LAST_NAMED_STREAM)", "    if ((uintptr_t)stream <= LAST_NAMED_STREAM || 1)",
           "other_card"),
    Mutant("slots of the dead that monitors count", "slot.c", "    memset(hami, 0, sizeof(*hami));\n", "", "region dead_process"),
    Mutant("a budget without an end", "compute/bucket.c", "added = gained < (uint64_t)room ? (int64_t)gained : room;", "added = (int64_t)gained;", "compute_budget"),
    Mutant("a cap that refills like the whole card", "compute/turn.c", "bucket_refill(bucket, now, cap);", "bucket_refill(bucket, now, 100);", "a_debt_is_waited"),
    Mutant("a way to launch that pays nothing", "compute/launches.c", "CUresult result = take_ex(&turn, config, f, true);",
           "CUresult result = CUDA_SUCCESS;\n    turn.bucket = NULL;", "every_way_to_launch"),
    Mutant("a failed launch that is paid for", "compute/turn.c",
           "    pay(turn->bucket, turn->unpaid ? -bucket_price(turn->bucket, turn->cost->ns) : -turn->price, turn->capped);", "    (void)0;",
           "launch_that_fails not_owed"),
    Mutant("a graph at the price of one that is gone", "compute/turn.c", "    collect(compute);\n    cost_begin_anew(cost);", "    collect(compute);", "another_graph"),
    Mutant("a failed launch whose kind was paid for meanwhile", "compute/turn.c", "    while (unpaid > 0 && !__atomic", "    while (!__atomic", "launch_that_fails"),
    Mutant("captured launches wait", "compute/turn.c", " || captures_touch(turn->stream, turn->per_thread))\n        return;", ")\n        return;", "captur"),
    Mutant("who waits does not see a raised cap", "compute/turn.c", "        note_paid(compute, device, now);\n        look(compute, clock_coarse());",
           "        note_paid(compute, device, now);", "raised_cap"),
    Mutant("a launch is free under a cap", "compute/turn.h", "!compute || __atomic_load_n(&compute->metered, __ATOMIC_RELAXED) || ", "!compute || ", "every_way_to_launch"),
    Mutant("a known kind pays nothing", "compute/turn.c", "    pay(&device->compute, turn->price, capped);\n", "", "known_kind"),
    Mutant("a known kind heeds no debt", "compute/turn.c", " || (capped && bucket_balance(&device->compute) <= 0))", ")", "known_kind"),
    Mutant("a known kind heeds no order", "compute/turn.c", " ||\n        __atomic_load_n(&device->order, __ATOMIC_RELAXED) != 0)", ")", "known_kind"),
    Mutant("a known kind pays for what is captured", "compute/turn.c", " || __atomic_load_n(&captures_open, __ATOMIC_ACQUIRE) != 0 ||", " ||", "known_kind"),
    Mutant("a known kind is never timed again", "compute/turn.c", "cost && cost_countdown(cost) > 0 ?", "cost ?", "known_kind"),
    Mutant("the time of others is in the price", "compute/costs.c", "if (samples[i] <= least * NEAR_PERCENT / 100) {", "if (1) {", "samples_near"),
    Mutant("prices are not corrected", "compute/trim.c", "next = factor * step / FACTOR_ONE;", "next = factor + 0 * step;", "compute_budget"),
    Mutant("HAMi's switch does nothing", "compute/turn.c", "return policy == CORES_ALWAYS || (policy == CORES_BY_MONITOR && ",
           "return policy != CORES_NEVER || (0 && ", "hamis_policy"),
    Mutant("waiting is not counted", "compute/turn.c", "    count_throttled(device, woken - now);\n", "    (void)device;\n", "wait_is_counted"),
    Mutant("the only device's cap for all", "compute/turn.c", "    if (only != DEVICE_NONE)\n        return only;", "    return only == DEVICE_NONE ? 0 : only;", "caps_and_budgets"),
    Mutant("a directory of the node that is made where none is mounted", "container.c", "find_region_directory(path, !files.request.region_is_mounted, reason)",
           "find_region_directory(path, true, reason)", "not_mounted_is_not_made"),
    Mutant("a directory of the node taken for a volume", "limits.c", "int length = files->request.region_is_mounted\n", "int length = 0 && files->request.region_is_mounted\n",
           "node_is_the_region"),
    Mutant("a PID of who had the slot before", "container.c", "return told >> 32 == slot_mark(process_slot) ? (uint32_t)told : 0;", "return (uint32_t)told;", "pid_is_believed"),
    Mutant("orders that never end", "compute/orders.c", "now - given <= ORDER_VALID", "now - given <= ORDER_VALID * 100", "compute_orders monitor_that_is_gone"),
    Mutant("who gives way fills the card", "compute/orders.c", "bool fits = waiting + ns <= ORDER_AT_MOST;", "bool fits = ns <= ORDER_AT_MOST;", "compute_orders gives_way_launches"),
    Mutant("a slow first launch counts for good", "compute/costs.h", "enum { SURE = 4 };", "enum { SURE = 1 };", "slow_first_launch"),
    Mutant("launches without a cap are owed", "compute/turn.c", "        bucket_count(bucket, price);", "        bucket_pay(bucket, price);", "not_owed"),
    Mutant("handlers run while something is held", "signals.h", "signals_mask(SIG_BLOCK, &held, &before);", "signals_mask(SIG_BLOCK, NULL, &before);", "jumps_away"),
    Mutant("meters that a handler left are lost", "compute/turn.c", "        meters_abandon(&compute->meters);\n", "        (void)0;\n", "loses_no_meter"),
)  # fmt: skip


def make(copy: Path, target: str, seconds: int, tests: str = "") -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", "-C", str(copy), target, f"FAKEGPU={FAKEGPU}", f"TESTS={tests}", "WERROR="]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def verdict(copy: Path, mutant: Mutant) -> str:
    """Empty if the tests noticed."""
    source = copy / "src" / mutant.file
    original = source.read_text()
    if original.count(mutant.old) != 1:
        return f"its text is {original.count(mutant.old)} times in src/{mutant.file}"
    try:
        source.write_text(original.replace(mutant.old, mutant.new))
        built = make(copy, "all", BUILD_SECONDS)
        if built.returncode != 0:
            return f"does not build: {built.stderr.strip().splitlines()[0]}"
        try:
            checked = make(copy, "check", TEST_SECONDS, f"-x {mutant.tests}")
        except subprocess.TimeoutExpired:
            return ""
        if "0 passed, 0 failed" in checked.stdout:
            return f"no test is named {mutant.tests}"
        if checked.returncode == 0:
            return "survives"
        failed = any(line.startswith("FAILED") for line in checked.stdout.splitlines())
        return "" if failed else f"no test failed, but: {checked.stderr.strip()}"
    finally:
        source.write_text(original)


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(name in mutant.name for name in sys.argv[1:])]
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "native" / "hami-core"
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("build"))
        (Path(directory) / "tests").symlink_to(FAKEGPU.parent)
        control = " ".join(sorted({mutant.tests for mutant in chosen}))
        unchanged = make(copy, "check", BUILD_SECONDS + CONTROL_SECONDS, control)
        if unchanged.returncode != 0:
            lines = [line for line in unchanged.stdout.splitlines() if line.startswith(("FAILED", "tests/"))]
            print("the tests fail without a change:", *lines, unchanged.stderr, sep="\n")
            return 2
        for mutant in chosen:
            begun = time.monotonic()
            said = verdict(copy, mutant)
            failed += said != ""
            line = f"{time.monotonic() - begun:5.1f} s  {mutant.name}"
            print(f"SURVIVED {line}: {said}" if said else f"noticed  {line}", flush=True)
    print(f"{len(chosen) - failed} noticed, {failed} not")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main())
