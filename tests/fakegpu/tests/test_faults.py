"""Faults on demand."""

import time
from pathlib import Path

from tests.fakegpu.machine import CONTEXT_BYTES, Machine, make_machine


def test_a_call_answers_what_it_was_told_to_and_does_nothing(machine: Machine) -> None:
    with machine.user(FAKEGPU_FAULTS="cuMemAlloc_v2=error:2@3") as process:
        answers = process.run("[code(d.cuMemAlloc(4 << 20)) for _ in range(4)]")
        assert answers == ["SUCCESS", "SUCCESS", "OUT_OF_MEMORY", "SUCCESS"]
        assert machine.held(process)["linear"] == 12 << 20


def test_every_call_of_a_family(machine: Machine) -> None:
    with machine.process(FAKEGPU_FAULTS="cuDevicePrimaryCtx*=error:999") as process:
        process.run("ok(d.cuInit(0))")
        assert process.run("code(d.cuDevicePrimaryCtxRetain(0)), code(d.cuDeviceGetCount())") == ["UNKNOWN", "SUCCESS"]


def test_a_start_that_fails_and_is_tried_again(machine: Machine) -> None:
    with machine.process(FAKEGPU_FAULTS="cuInit=error:999@1") as process:
        assert process.run("[code(d.cuInit(0)) for _ in range(3)]") == ["UNKNOWN", "SUCCESS", "SUCCESS"]
        assert process.run("code(d.cuDevicePrimaryCtxRetain(0))") == "SUCCESS"


def test_nvml_that_refuses(machine: Machine) -> None:
    faults = "nvmlDeviceGetComputeRunningProcesses_v3=error:3;nvmlDeviceGetMemoryInfo=error:999"
    with machine.process(FAKEGPU_FAULTS=faults) as process:
        process.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        process.run("def error(call):\n    try: call()\n    except n.NVMLError as raised: return str(raised)\n")
        assert process.run("error(lambda: n.nvmlDeviceGetComputeRunningProcesses(card))") == "Not Supported"
        assert process.run("error(lambda: n.nvmlDeviceGetMemoryInfo(card))") == "Unknown Error"


def test_a_call_that_takes_its_time(machine: Machine) -> None:
    with machine.user(FAKEGPU_FAULTS="cuMemGetInfo_v2=sleep:20000") as process:
        started = time.monotonic()
        process.run("for _ in range(20): ok(d.cuMemGetInfo())")
        assert time.monotonic() - started > 0.02  # 0.2 s on average


def test_the_configuration_may_say_so_too(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, faults="cuMemAlloc_v2=error:2")
    with machine.user() as process:
        assert process.run("code(d.cuMemAlloc(1))") == "OUT_OF_MEMORY"
        assert machine.held(process) == {"context": CONTEXT_BYTES}
    with machine.user(FAKEGPU_FAULTS="") as process:
        assert process.run("code(d.cuMemAlloc(1))") == "SUCCESS"
