"""Contexts: what they cost, primary ones counted, limits, green contexts, peers."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, T4, Card, Machine, make_machine

SECOND = "GPU-22222222-2222-3333-4444-555555555555"
UNIT = 2 * MIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


@pytest.fixture
def pair(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, T4, Card(uuid=SECOND), cuda="13.0")


def test_each_context_costs_and_gives_back(machine: Machine) -> None:
    with machine.user() as process:
        process.run("contexts = [ok(d.cuCtxCreate(None, 0, dev)) for _ in range(3)]")
        assert machine.held(process) == {"context": 4 * CONTEXT_BYTES}
        process.run("[ok(d.cuCtxDestroy(context)) for context in contexts]")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_a_card_too_full_for_a_context_refuses_it(machine: Machine) -> None:
    with machine.user() as holder, machine.process() as other:
        holder.run("p = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - (50 << 20)))")
        other.run("ok(d.cuInit(0))")
        assert other.run("code(d.cuDevicePrimaryCtxRetain(0)), code(d.cuCtxCreate(None, 0, 0))") == [
            "OUT_OF_MEMORY",
            "OUT_OF_MEMORY",
        ]
        assert machine.held(other) == {}


def test_the_primary_context_lives_until_the_last_release(machine: Machine) -> None:
    with machine.user() as process:
        assert process.run("ok(d.cuDevicePrimaryCtxRetain(dev)) == ctx")
        process.run("ok(d.cuDevicePrimaryCtxRelease(dev))")
        assert process.run("ok(d.cuDevicePrimaryCtxGetState(dev))") == [0, 1]
        process.run("ok(d.cuDevicePrimaryCtxRelease(dev))")
        assert process.run("ok(d.cuDevicePrimaryCtxGetState(dev))") == [0, 0]
        assert process.run("code(d.cuDevicePrimaryCtxRelease(dev))") == "INVALID_CONTEXT"
        assert machine.held(process) == {}


def test_the_stack_of_current_contexts(machine: Machine) -> None:
    with machine.user() as process:
        process.run("other = ok(d.cuCtxCreate(None, 0, dev))")
        assert process.run("int(ok(d.cuCtxGetCurrent())) == int(other)")
        assert process.run("int(ok(d.cuCtxPopCurrent())) == int(other)")
        assert process.run("int(ok(d.cuCtxGetCurrent())) == int(ctx)")
        process.run("ok(d.cuCtxPushCurrent(other))")
        process.run("ok(d.cuCtxDestroy(other))")
        assert process.run("int(ok(d.cuCtxGetCurrent())) == int(ctx)")
        assert process.run("code(d.cuCtxPushCurrent(other))") == "INVALID_CONTEXT"
        process.run("ok(d.cuCtxPopCurrent())")
        assert process.run("int(ok(d.cuCtxGetCurrent())), code(d.cuMemAlloc(1))") == [0, "INVALID_CONTEXT"]


def test_a_context_destroyed_by_another_thread_is_recognised(machine: Machine) -> None:
    with machine.user() as process:
        process.run("other = ok(d.cuCtxCreate(None, 0, dev))")
        process.run(
            "import threading\n"
            "thread = threading.Thread(target=lambda: d.cuCtxDestroy(other))\n"
            "thread.start(); thread.join()\n"
        )
        assert process.run("code(d.cuMemAlloc(1))") == "CONTEXT_IS_DESTROYED"


def test_limits_cost_memory_as_they_grow(machine: Machine) -> None:
    with machine.user() as process:
        limit = "d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE"
        process.run(f"ok(d.cuCtxSetLimit({limit}, 108 << 20))")
        assert machine.held(process) == {"context": CONTEXT_BYTES + 100 * MIB}
        assert process.run(f"ok(d.cuCtxGetLimit({limit}))") == 108 * MIB
        process.run("ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 2048))")
        stacks = 1024 * 40 * 1024
        assert machine.held(process) == {"context": CONTEXT_BYTES + 100 * MIB + stacks}
        process.run(f"ok(d.cuCtxSetLimit({limit}, 0)), ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 1024))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        assert process.run(f"code(d.cuCtxSetLimit({limit}, 1 << 50))") == "OUT_OF_MEMORY"
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_a_green_context_keeps_the_primary_one(machine: Machine) -> None:
    with machine.process() as process:
        process.run("ok(d.cuInit(0))")
        process.run(
            "sm = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))\n"
            "groups, count, rest = ok(d.cuDevSmResourceSplitByCount(2, sm, 0, 10))\n"
        )
        assert process.run("sm.sm.smCount, count, groups[0].sm.smCount, rest.sm.smCount") == [40, 2, 10, 20]
        process.run(
            "green = ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([groups[0]], 1)), 0, "
            "d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value))"
        )
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(green))))")
        process.run("ok(d.cuDevicePrimaryCtxRetain(0)), ok(d.cuDevicePrimaryCtxRelease(0))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("ok(d.cuGreenCtxDestroy(green))")
        assert machine.held(process) == {}


def test_memory_of_a_green_context_is_the_primary_ones(machine: Machine) -> None:
    with machine.user() as process:
        process.run(
            "sm = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))\n"
            "green = ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc([sm], 1)), 0, "
            "d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value))\n"
            "view = ok(d.cuCtxFromGreenCtx(green)); ok(d.cuCtxSetCurrent(view))"
        )
        assert process.run("int(ok(d.cuCtxGetCurrent())) == int(view) != int(ctx)")
        assert process.run("code(d.cuCtxDestroy(view))") == "INVALID_CONTEXT"
        process.run("p = ok(d.cuMemAlloc(4 << 20)); ok(d.cuGreenCtxDestroy(green))")
        assert machine.held(process) == {"context": CONTEXT_BYTES, "linear": 4 * MIB}
        assert process.run("code(d.cuMemAlloc(100))") == "CONTEXT_IS_DESTROYED"
        assert process.run("code(d.cuCtxSetCurrent(view))") == "INVALID_CONTEXT"
        process.run("ok(d.cuDevicePrimaryCtxRelease(0))")
        assert machine.held(process) == {}


def test_memory_is_of_the_current_contexts_device(pair: Machine) -> None:
    with pair.user(device=1) as process:
        process.run("p = ok(d.cuMemAlloc(4 << 20))")
        assert pair.held(process, 0) == {}
        assert pair.held(process, 1) == {"context": CONTEXT_BYTES, "linear": 4 * MIB}
        ordinal = "d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"
        assert process.run(f"ok(d.cuPointerGetAttribute({ordinal}, p))") == 1
        process.run("first = ok(d.cuDevicePrimaryCtxRetain(0)); ok(d.cuCtxSetCurrent(first))")
        assert process.run("code(d.cuMemFree(p))") == "SUCCESS"
        assert pair.held(process, 1) == {"context": CONTEXT_BYTES}


def test_peers_reach_each_other_once_enabled(pair: Machine) -> None:
    with pair.user() as process:
        process.run("second = ok(d.cuDevicePrimaryCtxRetain(1))")
        assert process.run("ok(d.cuDeviceCanAccessPeer(0, 1)), ok(d.cuDeviceCanAccessPeer(0, 0))") == [1, 0]
        assert process.run("[code(d.cuCtxEnablePeerAccess(second, 0)) for _ in range(2)]") == [
            "SUCCESS",
            "PEER_ACCESS_ALREADY_ENABLED",
        ]
        assert process.run("[code(d.cuCtxDisablePeerAccess(second)) for _ in range(2)]") == [
            "SUCCESS",
            "PEER_ACCESS_NOT_ENABLED",
        ]
        assert process.run("code(d.cuCtxEnablePeerAccess(ctx, 0))") == "PEER_ACCESS_UNSUPPORTED"
        process.run("a = ok(d.cuMemAlloc(64)); ok(d.cuMemsetD8(a, 7, 64)); ok(d.cuCtxSetCurrent(second))")
        process.run("b = ok(d.cuMemAlloc(64)); ok(d.cuMemcpyPeer(b, second, a, ctx, 64)); out = bytearray(64)")
        process.run("ok(d.cuMemcpyDtoH(out, b, 64))")
        assert process.run("out == bytes([7]) * 64")
