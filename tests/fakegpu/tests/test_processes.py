"""Processes that share a card: they see each other's memory, and death of any kind gives it back."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, LIBRARIES, MIB, Machine

from isolator_testing.tools import require, require_root

CAPACITY = 15360 * MIB
GIB = 1024 * MIB
UNKNOWN_PID = 4194304  # NVML shows higher ones for processes whose host PID nobody could learn yet

LIST = "[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(card)]"


def namespace_command() -> tuple[str, ...]:
    require_root()
    require("unshare", package="util-linux")
    return ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def test_two_processes_see_one_card(machine: Machine) -> None:
    with machine.user() as first, machine.user() as second:
        first.run("p = ok(d.cuMemAlloc(9 << 30))")
        assert second.run("ok(d.cuMemGetInfo())[0]") == CAPACITY - 2 * CONTEXT_BYTES - 9 * GIB
        assert second.run("code(d.cuMemAlloc(6 << 30))") == "OUT_OF_MEMORY"
        first.run("ok(d.cuMemFree(p))")
        assert second.run("code(d.cuMemAlloc(6 << 30))") == "SUCCESS"


def test_nvml_lists_who_holds_what(machine: Machine) -> None:
    with machine.user() as first, machine.user() as second, machine.process() as reader:
        first.run("p = ok(d.cuMemAlloc(1 << 30))")
        second.run("p = ok(d.cuMemAlloc(2 << 30))")
        reader.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        expected = [[first.popen.pid, CONTEXT_BYTES + GIB], [second.popen.pid, CONTEXT_BYTES + 2 * GIB]]
        assert sorted(reader.run(LIST)) == sorted(expected)
        assert reader.run("n.nvmlDeviceGetMemoryInfo(card).used") == 2 * CONTEXT_BYTES + 3 * GIB


def test_a_process_without_a_context_is_not_listed(machine: Machine) -> None:
    with machine.process() as process:
        process.run("ok(d.cuInit(0)); n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        assert process.run(LIST) == []
        process.run("ok(d.cuDevicePrimaryCtxRetain(0))")
        assert process.run(LIST) == [[process.popen.pid, CONTEXT_BYTES]]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_frees_everything(machine: Machine, end: signal.Signals) -> None:
    with machine.user() as survivor:
        with machine.user() as victim:
            victim.run("p = ok(d.cuMemAlloc(14 << 30))")
            assert survivor.run("code(d.cuMemAlloc(6 << 30))") == "OUT_OF_MEMORY"
            victim.popen.send_signal(end)
            victim.popen.wait()
        assert survivor.run("ok(d.cuMemGetInfo())[0]") == CAPACITY - CONTEXT_BYTES
        assert survivor.run("code(d.cuMemAlloc(14 << 30))") == "SUCCESS"


def test_another_program_by_exec_starts_with_nothing(machine: Machine) -> None:
    with machine.process() as process:
        process.run("ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))")
        process.run("p = ok(d.cuMemAlloc(1 << 30))")
        assert machine.used_mib() == 1124
        process.send("import os; os.execlp('sleep', 'sleep', '60')")
        deadline = time.monotonic() + 30
        while machine.used_mib() != 0:
            assert time.monotonic() < deadline
        process.kill()


def test_the_child_of_a_fork_owns_nothing_and_may_not_use_it(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(1 << 30))")
        process.run(
            "import os\n"
            "reader, writer = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    answers = [d.cuInit(0), d.cuMemGetInfo(), d.cuMemFree(p), d.cuDeviceGetCount(), d.cuCtxGetCurrent()]\n"
            "    os.write(writer, ' '.join(code(answer) for answer in answers).encode())\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        assert process.run("os.read(reader, 1000).decode()") == " ".join(["NOT_INITIALIZED"] * 5)
        assert machine.used_mib() == 1124
        assert process.run("code(d.cuMemFree(p))") == "SUCCESS"


def test_a_fork_before_init_may_use_the_driver(machine: Machine) -> None:
    with machine.process() as process:
        process.run(
            "import os\n"
            "reader, writer = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    os.write(writer, code(d.cuInit(0)).encode())\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        assert process.run("os.read(reader, 1000).decode(), code(d.cuInit(0))") == ["SUCCESS", "SUCCESS"]


def test_a_parent_that_dies_frees_while_its_child_lives(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(1 << 30))")
        child = process.run("import os, signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\n")
        child = process.run("child")
        process.kill()
        try:
            assert machine.used_mib() == 0
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_stopped_process_holds_up_nobody(machine: Machine) -> None:
    hammer = (
        "import threading\n"
        "def work():\n"
        "    while True: ok(d.cuMemFree(ok(d.cuMemAlloc(4 << 20))))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
    )
    with machine.user() as stopped, machine.user() as running:
        stopped.run(hammer)
        for _ in range(30):
            stopped.popen.send_signal(signal.SIGSTOP)
            running.run("for _ in range(200): ok(d.cuMemFree(ok(d.cuMemAlloc(4 << 20))))")
            stopped.popen.send_signal(signal.SIGCONT)
        stopped.kill()


def test_a_card_is_never_oversold_nor_refused_when_there_is_room(machine: Machine) -> None:
    """Four processes take and give 1 GiB each, and four times 1 GiB is what there is room for."""
    worker = (
        "import random\n"
        "refused = 0\n"
        "for _ in range(2000):\n"
        "    answer = d.cuMemAlloc(1 << 30)\n"
        "    refused += code(answer) != 'SUCCESS'\n"
        "    if code(answer) == 'SUCCESS': ok(d.cuMemFree(answer[1]))\n"
    )
    with machine.user() as holder, ExitStack() as stack:
        processes = [stack.enter_context(machine.user()) for _ in range(4)]
        room = holder.run("ok(d.cuMemGetInfo())[0]") - 4 * GIB
        holder.run(f"p = ok(d.cuMemAlloc({room}))")
        for process in processes:
            process.send(worker)
        for process in processes:
            process.receive()
        assert [process.run("refused") for process in processes] == [0, 0, 0, 0]
        for process in processes:
            process.run("p = ok(d.cuMemAlloc(1 << 30))")
        assert holder.run("code(d.cuMemAlloc(1))") == "OUT_OF_MEMORY"


def test_killing_at_random_leaves_nothing_behind(machine: Machine) -> None:
    hammer = (
        "import threading\n"
        "def work():\n"
        "    while True: ok(d.cuMemFree(ok(d.cuMemAlloc(4 << 20))))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
    )
    with machine.user() as survivor:
        for round_number in range(10):
            with machine.user() as victim:
                victim.run(hammer)
                time.sleep(0.003 * round_number)
                victim.kill()
            assert survivor.run("ok(d.cuMemGetInfo())[0]") == CAPACITY - CONTEXT_BYTES


@pytest.mark.root
def test_a_process_in_another_pid_namespace(machine: Machine) -> None:
    command = namespace_command()
    machine.nvidia_smi()  # the host makes the state
    with machine.user(wrapper=command) as inside, machine.process(wrapper=command) as other:
        inside.run("p = ok(d.cuMemAlloc(1 << 30))")
        assert inside.run("__import__('os').getpid()") == 1
        inside.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        other.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        for reader in (inside, other):
            ((pid, used),) = reader.run(LIST)
            assert pid > UNKNOWN_PID
            assert used == CONTEXT_BYTES + GIB
        with machine.process() as host:
            host.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
            ((pid, used),) = host.run(LIST)
            assert used == CONTEXT_BYTES + GIB
            children = subprocess.run(
                ["ps", "-o", "pid=", "--ppid", str(inside.popen.pid)], capture_output=True, text=True, check=True
            )
            assert pid == int(children.stdout)
        for reader in (inside, other):  # now the host's number is known to all
            assert reader.run(LIST) == [[pid, CONTEXT_BYTES + GIB]]
        inside.kill()
        deadline = time.monotonic() + 30
        while machine.used_mib() != 0:
            assert time.monotonic() < deadline


def test_a_cleared_environment_finds_the_card_beside_the_library(machine: Machine) -> None:
    folder = machine.config.parent
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).write_bytes((LIBRARIES / name).read_bytes())
    source = "from cuda.bindings import driver as d; print(*map(int, (d.cuInit(0)[0], d.cuDeviceGetCount()[1])))"
    done = subprocess.run(
        ["env", "-i", f"LD_LIBRARY_PATH={folder}", sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0 1\n"
