"""Devices in time: streams, turns between processes, the queue, events, and what NVML makes of it.

The model's clock moves only when all who take part sleep, so that these tests do not depend on how fast they run.
"""

from pathlib import Path

import pytest
from tests.fakegpu.machine import Card, Machine, Process, make_machine

MS = 1_000_000
KERNELS = ("short_50us", "middle_1ms", "long_50ms", "none")
PTX = ".version 8.0\n.target sm_75\n" + "".join(f".visible .entry {name}() {{ ret; }}\n" for name in KERNELS)
FIRST_RUN_NS = 500_000
PREPARE = f"""
import ctypes
class Clock(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("now", ctypes.CFUNCTYPE(ctypes.c_uint64)),
                ("sleep_until", ctypes.CFUNCTYPE(None, ctypes.c_uint64)),
                ("join", ctypes.CFUNCTYPE(None)), ("leave", ctypes.CFUNCTYPE(None))]
ident = d.CUuuid()
ctypes.memmove(ident.getPtr(), bytes.fromhex("fa4e9b0cc10c40008000") + b"fakegp", 16)
clock = ctypes.cast(int(ok(d.cuGetExportTable(ident))), ctypes.POINTER(Clock)).contents
module = ok(d.cuModuleLoadData({PTX.encode()!r} + bytes(1)))
kernel = {{name: ok(d.cuModuleGetFunction(module, name.encode())) for name in {KERNELS!r}}}
stream, other = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
def launch(name, where=None): return d.cuLaunchKernel(kernel[name], 1, 1, 1, 1, 1, 1, 0, where or stream, 0, 0)
for name in {KERNELS!r}: ok(launch(name))
ok(d.cuCtxSynchronize())
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0", timeline="on", clock="model", **{"noise-percent": "0", "seed": "1"})


def elapsed(process: Process, source: str) -> int:
    """Model time that statements take, in ns."""
    process.run("before = clock.now()")
    process.run(source)
    return int(process.run("clock.now() - before"))


def test_a_kernel_takes_what_its_name_says_and_more_the_first_time(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        assert elapsed(process, "ok(launch('middle_1ms'))") == 0  # launches do not wait
        assert elapsed(process, "ok(d.cuStreamSynchronize(stream))") == MS
        assert elapsed(process, "ok(launch('none')); ok(d.cuStreamSynchronize(stream))") == 0
        process.run(
            "fresh = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData("
            + repr(PTX.encode())
            + " + bytes(1))), b'middle_1ms'))"
        )
        process.run("ok(d.cuLaunchKernel(fresh, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))")
        assert elapsed(process, "ok(d.cuStreamSynchronize(stream))") == MS + FIRST_RUN_NS


def test_a_stream_works_in_order_and_streams_work_side_by_side(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        assert elapsed(process, "for _ in range(10): ok(launch('middle_1ms'))\nok(d.cuCtxSynchronize())") == 10 * MS
        process.run("for _ in range(10): ok(launch('middle_1ms')), ok(launch('middle_1ms', other))")
        assert elapsed(process, "ok(d.cuCtxSynchronize())") == 10 * MS


def test_blocking_streams_and_the_legacy_one_wait_for_each_other(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("blocking = ok(d.cuStreamCreate(0))")
        process.run("ok(launch('middle_1ms', blocking)); ok(launch('middle_1ms', d.CUstream(1)))")
        process.run("ok(launch('middle_1ms', blocking)); ok(launch('middle_1ms'))")
        assert elapsed(process, "ok(d.cuCtxSynchronize())") == 3 * MS


def test_an_event_orders_streams_and_is_stamped_by_the_device(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("begin, middle, end = (ok(d.cuEventCreate(0)) for _ in range(3))")
        process.run("ok(d.cuEventRecord(begin, stream)); ok(launch('middle_1ms')); ok(d.cuEventRecord(middle, stream))")
        process.run("ok(d.cuStreamWaitEvent(other, middle, 0)); ok(launch('middle_1ms', other))")
        process.run("ok(d.cuEventRecord(end, other))")
        assert process.run("code(d.cuEventQuery(end)), code(d.cuStreamQuery(other))") == ["NOT_READY", "NOT_READY"]
        assert process.run("code(d.cuEventElapsedTime(begin, end))") == "NOT_READY"
        assert elapsed(process, "ok(d.cuEventSynchronize(end))") == 2 * MS
        assert process.run("ok(d.cuEventElapsedTime(begin, middle)), ok(d.cuEventElapsedTime(begin, end))") == [1, 2]


def test_the_queue_has_a_depth(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        assert elapsed(process, "for _ in range(1024): ok(launch('middle_1ms'))") == 0
        assert elapsed(process, "ok(launch('middle_1ms'))") == 257 * MS  # until a quarter is free


def test_a_graph_is_one_unit(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))")
        process.run("for _ in range(2000): ok(launch('short_50us'))")
        process.run("exec_ = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))")
        assert elapsed(process, "ok(d.cuGraphLaunch(exec_, stream))") == 0
        assert elapsed(process, "ok(d.cuStreamSynchronize(stream))") == 100 * MS


def test_processes_take_turns_of_two_milliseconds(machine: Machine) -> None:
    with machine.user() as first, machine.user() as second:
        for process in (first, second):
            process.run(PREPARE)
            process.run("begin, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))")
        first.run("clock.join()")  # time stands still until both have submitted
        for process in (first, second):
            process.run("ok(d.cuEventRecord(begin, stream)); ok(launch('long_50ms')); ok(d.cuEventRecord(end, stream))")
        first.run("clock.leave()")
        second.run("ok(d.cuEventSynchronize(end))")
        first.run("ok(d.cuEventSynchronize(end))")
        times = sorted(process.run("ok(d.cuEventElapsedTime(begin, end))") for process in (first, second))
        assert times == pytest.approx([98, 100], abs=0.01)  # stamps contain the other's turns


def test_a_lone_process_has_the_device_for_good(machine: Machine) -> None:
    with machine.user() as idle, machine.user() as busy:
        idle.run(PREPARE)
        busy.run(PREPARE)
        assert elapsed(busy, "ok(launch('long_50ms')); ok(d.cuStreamSynchronize(stream))") == 50 * MS


def test_work_of_a_killed_process_is_forgotten(machine: Machine) -> None:
    with machine.user() as survivor:
        survivor.run(PREPARE)
        with machine.user() as victim:
            victim.run(PREPARE)
            victim.run("for _ in range(100): ok(launch('long_50ms'))")
            victim.kill()
        assert elapsed(survivor, "ok(launch('middle_1ms')); ok(d.cuStreamSynchronize(stream))") == MS


READ = (
    "n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)\n"
    "def samples(seen=0):\n"
    "    try: return [(s.pid, s.smUtil) for s in n.nvmlDeviceGetProcessUtilization(card, seen)]\n"
    "    except n.NVMLError as error: return str(error)\n"
)


def test_nvml_tells_of_the_last_window(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run(READ)
        process.run("clock.sleep_until(10_000_000_000)")
        assert process.run("samples(), n.nvmlDeviceGetUtilizationRates(card).gpu") == ["Not Found", 0]
        half = (
            "for _ in range({}): ok(launch('long_50ms')); ok(d.cuCtxSynchronize()); clock.sleep_until(clock.now() + {})"
        )
        process.run(half.format(20, 50 * MS))  # 2 s at 50 %
        assert process.run("samples()") == [[process.popen.pid, 50]]
        process.run("last = n.nvmlDeviceGetProcessUtilization(card, 0)[0].timeStamp")
        assert process.run("last, samples(last)") == [12_000_000, "Not Found"]  # nothing newer yet
        process.run("for _ in range(10): ok(launch('long_50ms'))\nok(d.cuCtxSynchronize())")
        assert process.run("n.nvmlDeviceGetUtilizationRates(card).gpu") == 100
        process.run("clock.sleep_until(clock.now() + 400_000_000)")
        assert process.run("n.nvmlDeviceGetUtilizationRates(card).gpu") == 0
        assert process.run("samples()[0][1]") == 60  # a second that ended up to a quarter of a second ago
        process.run("clock.sleep_until(clock.now() + 2_000_000_000)")
        assert process.run("samples()") == "Not Found"


def test_mig_has_no_utilisation(tmp_path: Path) -> None:
    part = Card(extra={"mig-uuid": "MIG-eeeeeee1-0000-0000-0000-000000000005"})
    machine = make_machine(tmp_path, part, timeline="on", clock="model")
    with machine.process() as process:
        process.run(READ)
        assert process.run("samples()") == "Not Supported"
        process.run(
            "def rates():\n    try: n.nvmlDeviceGetUtilizationRates(card)\n    except n.NVMLError as e: return str(e)"
        )
        assert process.run("rates()") == "Not Supported"


def test_lengths_scatter_around_the_name(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, cuda="13.0", timeline="on", clock="model", seed="7")
    with machine.user() as process:
        process.run(PREPARE)
        process.run(
            "import statistics\n"
            "def one():\n"
            "    before = clock.now(); ok(launch('middle_1ms')); ok(d.cuStreamSynchronize(stream))\n"
            "    return (clock.now() - before) / 1e6\n"
            "lengths = [one() for _ in range(1000)]\n"
        )
        assert process.run("statistics.mean(lengths)") == pytest.approx(1, abs=0.01)
        assert process.run("statistics.stdev(lengths)") == pytest.approx(0.05, abs=0.01)


def test_the_same_seed_gives_the_same_lengths(tmp_path: Path) -> None:
    ends = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        machine = make_machine(tmp_path / name, cuda="13.0", timeline="on", clock="model", seed="7")
        with machine.user() as process:
            process.run(PREPARE)
            ends.append(process.run("clock.now()"))
    assert ends[0] == ends[1]


def test_the_real_clock_takes_real_time(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, cuda="13.0", timeline="on", seed="1")
    with machine.user() as process:
        process.run(PREPARE)
        process.run(
            "import time; before = time.monotonic(); ok(launch('long_50ms')); ok(d.cuStreamSynchronize(stream))"
        )
        assert process.run("time.monotonic() - before > 0.03")


def test_without_a_timeline_kernels_take_no_time(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, cuda="13.0")
    with machine.user() as process:
        process.run(PREPARE)
        process.run("for _ in range(3000): ok(launch('long_50ms'))")
        assert process.run("code(d.cuStreamQuery(stream))") == "SUCCESS"


def test_a_minute_with_two_processes_takes_seconds(machine: Machine) -> None:
    worker = (
        "end = {end}\n"
        "clock.join()\n"
        "count = 0\n"
        "while clock.now() < end: ok(launch('short_50us')); count += 1\n"
        "clock.leave()\n"
    )
    with machine.user() as first, machine.user() as second:
        for process in (first, second):
            process.run(PREPARE)
        first.run("clock.join()")
        end = first.run("clock.now()") + 10_000 * MS
        first.send(worker.format(end=end))
        second.send(worker.format(end=end))
        for process in (first, second):
            process.receive()
        counts = [process.run("count") for process in (first, second)]
        assert sum(counts) == pytest.approx(200_000, rel=0.03)
        assert counts[0] == pytest.approx(counts[1], rel=0.05)
