"""Stream capture and graphs: who may do what while a stream captures, and what memory nodes take."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, Process, make_machine

MODE = "d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_"
PREPARE = (
    "import threading\n"
    "stream, other = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))\n"
    "def status(s): return ok(d.cuStreamIsCapturing(s)).name.removeprefix('CU_STREAM_CAPTURE_STATUS_')\n"
    "def types(graph):\n"
    "    nodes, count = ok(d.cuGraphGetNodes(graph, 100))\n"
    "    names = [ok(d.cuGraphNodeGetType(node)).name for node in nodes[:count]]\n"
    "    return [name.removeprefix('CU_GRAPH_NODE_TYPE_') for name in names]\n"
    "def elsewhere(call):\n"
    "    answers = []\n"
    "    def work():\n"
    "        d.cuCtxSetCurrent(ctx)\n"
    "        answers.append(code(call()))\n"
    "    thread = threading.Thread(target=work)\n"
    "    thread.start(); thread.join()\n"
    "    return answers[0]\n"
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def begin(process: Process, mode: str = "GLOBAL") -> None:
    process.run(f"ok(d.cuStreamBeginCapture(stream, {MODE}{mode}))")


def test_captured_work_becomes_nodes_and_does_not_run(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p = ok(d.cuMemAlloc(64)); ok(d.cuMemsetD8(p, 1, 64)); out = bytearray(64)")
        begin(process)
        process.run("ok(d.cuMemsetD8Async(p, 2, 64, stream)); ok(d.cuMemcpyDtoHAsync(out, p, 64, stream))")
        process.run("graph = ok(d.cuStreamEndCapture(stream))")
        assert process.run("out[0], types(graph)") == [0, ["MEMSET", "MEMCPY"]]
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(exec_, stream))")
        assert process.run("out == bytes([2]) * 64")


def test_an_event_carries_the_capture_to_another_stream(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p = ok(d.cuMemAlloc(64)); fork, join = ok(d.cuEventCreate(2)), ok(d.cuEventCreate(2))")
        begin(process)
        process.run("ok(d.cuMemsetD8Async(p, 2, 64, stream)); ok(d.cuEventRecord(fork, stream))")
        process.run("ok(d.cuStreamWaitEvent(other, fork, 0)); ok(d.cuMemsetD8Async(p, 3, 64, other))")
        assert process.run("status(other)") == "ACTIVE"
        process.run("ok(d.cuEventRecord(join, other)); ok(d.cuStreamWaitEvent(stream, join, 0))")
        process.run("graph = ok(d.cuStreamEndCapture(stream))")
        assert process.run("types(graph), status(other)") == [["MEMSET", "MEMSET"], "NONE"]


def test_a_stream_that_was_not_joined_spoils_the_end(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p = ok(d.cuMemAlloc(64)); fork = ok(d.cuEventCreate(2))")
        begin(process)
        process.run("ok(d.cuEventRecord(fork, stream)); ok(d.cuStreamWaitEvent(other, fork, 0))")
        process.run("ok(d.cuMemsetD8Async(p, 3, 64, other))")
        assert process.run("code(d.cuStreamEndCapture(stream)), status(stream), status(other)") == [
            "STREAM_CAPTURE_UNJOINED",
            "NONE",
            "NONE",
        ]


UNSAFE = [
    "d.cuMemAlloc(100)",
    "d.cuMemFree(p)",
    "d.cuCtxSynchronize()",
    "d.cuMemPoolTrimTo(pool, 0)",
    "d.cuDeviceGraphMemTrim(dev)",
    "d.cuMemHostAlloc(100, 0)",
]


@pytest.mark.parametrize("call", UNSAFE)
@pytest.mark.parametrize(
    ("capture", "thread", "where", "forbidden"),
    [
        ("GLOBAL", "GLOBAL", "here", True),
        ("GLOBAL", "GLOBAL", "elsewhere", True),
        ("THREAD_LOCAL", "GLOBAL", "here", True),
        ("THREAD_LOCAL", "GLOBAL", "elsewhere", False),
        ("RELAXED", "GLOBAL", "here", False),
        ("GLOBAL", "THREAD_LOCAL", "here", True),
        ("GLOBAL", "RELAXED", "here", False),
    ],
)
def test_unsafe_calls_spoil_a_capture(
    machine: Machine, call: str, capture: str, thread: str, where: str, forbidden: bool
) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p = ok(d.cuMemAlloc(64)); pool = ok(d.cuDeviceGetDefaultMemPool(dev))")
        begin(process, capture)
        process.run(f"ok(d.cuThreadExchangeStreamCaptureMode({MODE}{thread}))")
        made = f"elsewhere(lambda: {call})" if where == "elsewhere" else f"code({call})"
        assert process.run(made) == ("STREAM_CAPTURE_UNSUPPORTED" if forbidden else "SUCCESS")
        assert process.run("status(stream)") == ("INVALIDATED" if forbidden else "ACTIVE")
        end = "STREAM_CAPTURE_INVALIDATED" if forbidden else "SUCCESS"
        assert process.run("code(d.cuStreamEndCapture(stream)), status(stream)") == [end, "NONE"]


def test_safe_calls_do_not_spoil_a_capture(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("pool = ok(d.cuDeviceGetDefaultMemPool(dev))")
        begin(process)
        process.run("ok(d.cuMemGetInfo()); ok(d.cuStreamIsCapturing(stream)); ok(d.cuCtxGetDevice())")
        process.run("ok(d.cuMemPoolGetAttribute(pool, d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))")
        assert process.run("status(stream)") == "ACTIVE"


def test_waiting_for_a_capturing_stream_spoils_it(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("event = ok(d.cuEventCreate(0))")
        begin(process, "RELAXED")
        assert process.run("code(d.cuStreamSynchronize(stream)), status(stream)") == [
            "STREAM_CAPTURE_UNSUPPORTED",
            "INVALIDATED",
        ]
        process.run("d.cuStreamEndCapture(stream)")
        begin(process, "RELAXED")
        process.run("ok(d.cuEventRecord(event, stream))")
        assert process.run("code(d.cuEventSynchronize(event)), status(stream)") == ["CAPTURED_EVENT", "INVALIDATED"]


def test_the_legacy_stream_may_not_work_beside_a_blocking_stream_that_captures(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p = ok(d.cuMemAlloc(64)); stream = ok(d.cuStreamCreate(0))")
        begin(process, "RELAXED")
        assert process.run("code(d.cuStreamIsCapturing(0)), status(stream)") == ["STREAM_CAPTURE_IMPLICIT", "ACTIVE"]
        assert process.run("code(d.cuMemsetD8(p, 1, 64)), status(stream)") == [
            "STREAM_CAPTURE_IMPLICIT",
            "INVALIDATED",
        ]


def test_the_end_is_for_the_stream_and_thread_that_began(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        begin(process)
        assert process.run("elsewhere(lambda: d.cuStreamEndCapture(stream))") == "STREAM_CAPTURE_WRONG_THREAD"
        assert process.run("code(d.cuStreamEndCapture(stream))") == "STREAM_CAPTURE_INVALIDATED"
        begin(process, "RELAXED")
        assert process.run("elsewhere(lambda: d.cuStreamEndCapture(stream))") == "SUCCESS"
        assert process.run("code(d.cuStreamEndCapture(stream))") == "ILLEGAL_STATE"


def graph_bytes(machine: Machine, process: Process) -> int:
    return machine.held(process).get("graph", 0)


def memory(which: str) -> str:
    return f"int(ok(d.cuDeviceGetGraphMemAttribute(dev, d.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_{which})))"


def test_captured_allocations_take_memory_when_launched(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        begin(process)
        process.run("p = ok(d.cuMemAllocAsync(5 << 20, stream)); ok(d.cuMemsetD8Async(p, 3, 100, stream))")
        process.run("ok(d.cuMemFreeAsync(p, stream)); graph = ok(d.cuStreamEndCapture(stream))")
        assert process.run("types(graph)") == ["MEM_ALLOC", "MEMSET", "MEM_FREE"]
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0))")
        assert graph_bytes(machine, process) == 0
        process.run("ok(d.cuGraphLaunch(exec_, stream)); ok(d.cuGraphLaunch(exec_, stream))")
        assert graph_bytes(machine, process) == 6 * MIB
        assert process.run(f"{memory('USED_MEM_CURRENT')}, {memory('USED_MEM_HIGH')}") == [0, 6 * MIB]
        process.run("ok(d.cuDeviceGraphMemTrim(dev))")
        assert graph_bytes(machine, process) == 0


def alloc_node(process: Process, bytes_wanted: int) -> None:
    process.run(
        "params = d.CUDA_MEM_ALLOC_NODE_PARAMS()\n"
        "params.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED\n"
        "params.poolProps.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE\n"
        f"params.bytesize = {bytes_wanted}\n"
        "node = ok(d.cuGraphAddMemAllocNode(graph, None, 0, params))\n"
        "p = ok(d.cuGraphMemAllocNodeGetParams(node)).dptr\n"
    )


def test_addresses_of_graphs_cost_nothing(machine: Machine) -> None:
    """Many graphs that each need most of the card wait to be launched."""
    with machine.user() as process:
        process.run(PREPARE)
        begin(process, "RELAXED")
        process.run("allocated = [ok(d.cuMemAllocAsync(12 << 30, stream)) for _ in range(40)]")
        process.run("graph = ok(d.cuStreamEndCapture(stream))")
        assert len(set(process.run("[int(pointer) for pointer in allocated]"))) == 40
        assert machine.held(process) == {"context": CONTEXT_BYTES}
        process.run("ok(d.cuGraphDestroy(graph))")


def test_memory_that_a_graph_leaves_is_the_programs_to_free(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("graph = ok(d.cuGraphCreate(0))")
        alloc_node(process, 4 << 20)
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(exec_, stream))")
        assert process.run(memory("USED_MEM_CURRENT")) == 4 * MIB
        assert process.run("code(d.cuGraphLaunch(exec_, stream))") == "INVALID_VALUE"
        process.run("ok(d.cuMemFreeAsync(p, stream)); ok(d.cuGraphLaunch(exec_, stream)); ok(d.cuMemFree(p))")
        assert process.run(memory("USED_MEM_CURRENT")) == 0
        process.run("again = ok(d.cuGraphInstantiate(graph, 1))")  # frees by itself when launched again
        process.run("ok(d.cuGraphLaunch(again, stream)); ok(d.cuGraphLaunch(again, stream))")
        assert process.run(memory("USED_MEM_CURRENT")) == 4 * MIB


def test_a_launch_without_memory_is_refused_whole(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("graph = ok(d.cuGraphCreate(0))")
        alloc_node(process, 4 << 20)
        alloc_node(process, 8 << 20)
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0))")
        process.run("q = ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - (10 << 20)))")
        assert process.run("code(d.cuGraphLaunch(exec_, stream))") == "OUT_OF_MEMORY"
        assert process.run(memory("USED_MEM_CURRENT")) == 0
        process.run("ok(d.cuMemFree(q)); ok(d.cuGraphUpload(exec_, stream))")
        assert graph_bytes(machine, process) == 12 * MIB


def test_what_was_instantiated_outlives_its_graph(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("graph = ok(d.cuGraphCreate(0))")
        alloc_node(process, 4 << 20)
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphDestroy(graph))")
        process.run("ok(d.cuGraphLaunch(exec_, stream)); ok(d.cuGraphExecDestroy(exec_))")
        assert process.run(memory("USED_MEM_CURRENT")) == 4 * MIB
        assert process.run("code(d.cuMemFree(p)), code(d.cuMemFree(p))") == ["SUCCESS", "INVALID_VALUE"]


def test_graph_memory_ends_with_the_primary_context(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("graph = ok(d.cuGraphCreate(0))")
        alloc_node(process, 4 << 20)
        process.run("exec_ = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(exec_, stream))")
        assert graph_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuDevicePrimaryCtxReset(dev))")
        assert machine.held(process) == {}
        process.run("ok(d.cuGraphExecDestroy(exec_)); ok(d.cuGraphDestroy(graph))")


def test_nodes_run_after_what_they_depend_on(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run(
            "graph, p, out = ok(d.cuGraphCreate(0)), ok(d.cuMemAlloc(16)), bytearray(16)\n"
            "def fill(value):\n"
            "    params = d.CUDA_MEMSET_NODE_PARAMS()\n"
            "    params.dst, params.value, params.elementSize, params.width, params.height = p, value, 1, 16, 1\n"
            "    return ok(d.cuGraphAddMemsetNode(graph, None, 0, params, ctx))\n"
            "first, second = fill(1), fill(2)\n"
            "ok(d.cuGraphAddDependencies(graph, [second], [first], None, 1))\n"
            "ok(d.cuGraphLaunch(ok(d.cuGraphInstantiate(graph, 0)), stream)); ok(d.cuMemcpyDtoH(out, p, 16))\n"
        )
        assert process.run("out[0]") == 1
        process.run("ok(d.cuGraphAddDependencies(graph, [first], [second], None, 1))")
        assert process.run("code(d.cuGraphInstantiate(graph, 0))") == "INVALID_VALUE"


def test_a_child_graph_runs_as_part_of_its_parent(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p, out = ok(d.cuMemAlloc(16)), bytearray(16)")
        begin(process)
        process.run("ok(d.cuMemsetD8Async(p, 6, 16, stream)); child = ok(d.cuStreamEndCapture(stream))")
        process.run("graph = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddChildGraphNode(graph, None, 0, child))")
        process.run("ok(d.cuGraphDestroy(child)); ok(d.cuGraphLaunch(ok(d.cuGraphInstantiate(graph, 0)), stream))")
        process.run("ok(d.cuMemcpyDtoH(out, p, 16))")
        assert process.run("out[0]") == 6


def test_edges_are_read_and_removed(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run(
            "graph = ok(d.cuGraphCreate(0))\n"
            "a, b, c = (ok(d.cuGraphAddEmptyNode(graph, None, 0)) for _ in range(3))\n"
            "ok(d.cuGraphAddDependencies(graph, [a, a], [b, c], None, 2))\n"
            "def edges():\n"
            "    first, last, _, count = ok(d.cuGraphGetEdges(graph, 10))\n"
            "    names = {int(a): 'a', int(b): 'b', int(c): 'c'}\n"
            "    return sorted(names[int(x)] + names[int(y)] for x, y in zip(first[:count], last[:count]))\n"
        )
        assert process.run("edges()") == ["ab", "ac"]
        assert process.run("ok(d.cuGraphNodeGetDependentNodes(a, 10))[2]") == 2
        process.run("ok(d.cuGraphRemoveDependencies(graph, [a], [b], None, 1))")
        assert process.run("edges()") == ["ac"]
        assert process.run("code(d.cuGraphRemoveDependencies(graph, [a], [b], None, 1))") == "INVALID_VALUE"


def test_what_was_instantiated_is_updated_from_a_graph_of_its_shape(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("p, out = ok(d.cuMemAlloc(16)), bytearray(16)")
        process.run(
            "def capture(*values):\n"
            f"    ok(d.cuStreamBeginCapture(stream, {MODE}GLOBAL))\n"
            "    for value in values: ok(d.cuMemsetD8Async(p, value, 16, stream))\n"
            "    return ok(d.cuStreamEndCapture(stream))\n"
            "exec_ = ok(d.cuGraphInstantiate(capture(1), 0))\n"
        )
        assert process.run("code(d.cuGraphExecUpdate(exec_, capture(9)))") == "SUCCESS"
        process.run("ok(d.cuGraphLaunch(exec_, stream)); ok(d.cuMemcpyDtoH(out, p, 16))")
        assert process.run("out[0]") == 9
        assert process.run("code(d.cuGraphExecUpdate(exec_, capture(1, 2)))") == "GRAPH_EXEC_UPDATE_FAILURE"
