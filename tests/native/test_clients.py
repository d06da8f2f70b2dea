"""Programs that nobody here wrote, in a container: each shows the container's share, and all agree."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.native.client import Client, Server
from tests.native.container import Container

LIMIT_MIB = 4096
HELD_MIB = 1024
CONTEXT_MIB = 100

BINDINGS = """
from cuda.bindings import driver as d
from tests.fakegpu.client import ok
import json
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
free, total = ok(d.cuMemGetInfo())
print(json.dumps([(total - free) >> 20, total >> 20, ok(d.cuDeviceTotalMem(0)) >> 20]))
"""

NVML = """
import json, pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
plain, versioned = n.nvmlDeviceGetMemoryInfo(card), n.nvmlDeviceGetMemoryInfo(card, n.nvmlMemory_v2)
lists = [n.nvmlDeviceGetComputeRunningProcesses(card), n.nvmlDeviceGetComputeRunningProcesses_v2(card)]
print(json.dumps({
    "memory": [[memory.used >> 20, memory.free >> 20, memory.total >> 20] for memory in (plain, versioned)],
    "processes": [[[process.pid, process.usedGpuMemory >> 20] for process in found] for found in lists],
}))
"""

NUMBA = """
import json, numpy as np
from numba import cuda
context = cuda.current_context()
used = lambda: (lambda memory: (memory.total - memory.free) >> 20)(context.get_memory_info())
seen = [used()]
block = cuda.device_array(256 << 20, dtype=np.uint8)
managed = cuda.managed_array(64 << 20, dtype=np.uint8)
seen.append(used())
try:
    context.memalloc(4 << 30)
except cuda.cudadrv.driver.CudaAPIError as error:
    refused = error.code
copied = (cuda.to_device(np.arange(1000)).copy_to_host() == np.arange(1000)).all()
del block, managed
context.memory_manager.deallocations.clear()
seen.append(used())
print(json.dumps([seen, int(refused), bool(copied)]))
"""


@dataclass(frozen=True)
class Shown:
    """What a tool says of the first card, in MiB, and of its processes."""

    used: int
    total: int
    processes: dict[int, int]


@pytest.fixture
def holder(container: Container) -> Iterator[Client]:
    """A process of the container that holds a context and 1 GiB."""
    server = Server(container.environment())
    client = server.client()
    assert client.run("start(), make_context(1, 0), take(2, 1 << 30)") == ["SUCCESS"] * 3
    yield client
    client.kill()
    server.close()


def python(container: Container, source: str) -> str:
    root = str(Path(__file__).parents[2])
    return container.run(sys.executable, "-W", "error", "-c", source, PYTHONPATH=root)


def expected(holder: Client) -> Shown:
    used = HELD_MIB + CONTEXT_MIB
    return Shown(used, LIMIT_MIB, {holder.pid: used})


def test_cuda_bindings(container: Container, holder: Client) -> None:
    used = expected(holder).used + CONTEXT_MIB  # its own
    assert json.loads(python(container, BINDINGS)) == [used, LIMIT_MIB, LIMIT_MIB]


def test_nvidia_ml_py(container: Container, holder: Client) -> None:
    shown, told = expected(holder), json.loads(python(container, NVML))
    assert told["memory"] == [[shown.used, shown.total - shown.used, shown.total]] * 2
    assert told["processes"] == [[[holder.pid, shown.used]]] * 2


def nvidia_smi(container: Container) -> Shown:
    tool = [sys.executable, str(Path(__file__).parents[1] / "fakegpu/nvidia-smi"), "-i", "0"]
    plain = "--format=csv,noheader,nounits"
    card = container.run(*tool, "--query-gpu=memory.used,memory.total", plain)
    found = container.run(*tool, "--query-compute-apps=pid,used_memory", plain)
    used, total = map(int, card.split(","))
    return Shown(used, total, {int(pid): int(held) for pid, held in re.findall(r"(\d+), (\d+)", found)})


def gpustat(container: Container) -> Shown:
    card = json.loads(container.run(sys.executable, "-m", "gpustat", "--json"))["gpus"][0]
    processes = {process["pid"]: process["gpu_memory_usage"] for process in card["processes"]}
    return Shown(card["memory.used"], card["memory.total"], processes)


def nvitop(container: Container) -> Shown:
    printed = container.run(sys.executable, "-m", "nvitop", "-1", "--no-unicode", "--only", "0")
    card = re.search(r"([\d.]+)MiB / ([\d.]+)MiB", printed)
    assert card, printed
    processes = re.findall(r"^\|\s+0\s+(\d+) C\s+\S+\s+([\d.]+)MiB", printed, re.MULTILINE)
    return Shown(int(float(card[1])), int(float(card[2])), {int(pid): int(float(held)) for pid, held in processes})


@pytest.mark.parametrize("tool", [nvidia_smi, gpustat, nvitop])
def test_tools_that_print_a_table(container: Container, holder: Client, tool: object) -> None:
    assert callable(tool)
    assert tool(container) == expected(holder)


def test_the_memory_manager_of_numba(container: Container, holder: Client) -> None:
    before = expected(holder).used + CONTEXT_MIB
    (empty, filled, emptied), refused, copied = json.loads(python(container, NUMBA))
    assert (empty, filled) == (before, before + 256 + 64)
    assert emptied - before in (0, 1, 2), "a unit of the driver for small blocks may be counted as overhead"
    assert (refused, copied) == (2, True)
