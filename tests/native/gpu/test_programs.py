"""Programs of CUDA's runtime and PyTorch see the share and are kept to it."""

import importlib.util
import json
import sys

import pytest
from tests.native import test_clients
from tests.native.client import Client
from tests.native.container import Container
from tests.native.gpu.conftest import SHARE_MIB

pytestmark = pytest.mark.gpu

RUNTIME = """
import ctypes, json
from cuda.pathfinder import load_nvidia_dynamic_lib
runtime = ctypes.CDLL(load_nvidia_dynamic_lib("cudart").abs_path)
free, total, block = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
answers = [runtime.cudaSetDevice(0), runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))]
for call in ("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync"):
    more = [0] if call == "cudaMallocAsync" else [1] if call == "cudaMallocManaged" else []
    take = getattr(runtime, call)
    for size in (256 << 20, total.value):
        answers.append(take(ctypes.byref(block), ctypes.c_size_t(size), *more))
        if answers[-1] == 0:
            answers.append(runtime.cudaFree(block))
print(json.dumps([total.value >> 20, answers]))
"""

TORCH = """
import json, torch
free, total = torch.cuda.mem_get_info()
block = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
product = torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
refused = False
try:
    torch.empty(total, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    refused = True
print(json.dumps([total >> 20, torch.cuda.get_device_properties(0).total_memory >> 20, refused, product[0, 0].item()]))
"""

REFUSED = 2  # cudaErrorMemoryAllocation


def test_a_program_of_cudas_runtime(container: Container) -> None:
    total, answers = json.loads(container.run(sys.executable, "-c", RUNTIME))
    assert total == SHARE_MIB
    assert answers == [0, 0, *[0, 0, REFUSED] * 3]


def test_pytorch(container: Container) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("NOT RUN: PyTorch is not installed (uv pip install torch)")
    seen, properties, refused, product = json.loads(container.run(sys.executable, "-c", TORCH))
    assert (seen, properties, refused, product) == (SHARE_MIB, SHARE_MIB, True, 512.0)


def test_cuda_bindings(container: Container) -> None:
    used, total, by_device = json.loads(test_clients.python(container, test_clients.BINDINGS))
    assert (total, by_device) == (SHARE_MIB, SHARE_MIB)
    assert 0 < used < SHARE_MIB


@pytest.mark.parametrize("tool", [test_clients.gpustat, test_clients.nvitop])
def test_tools_that_print_a_table(container: Container, client: Client, tool: object) -> None:
    assert callable(tool)
    assert client.run("take(2, 256 << 20)") == "SUCCESS"
    shown = tool(container)
    assert shown.total == SHARE_MIB
    assert 256 < shown.used < SHARE_MIB
    assert shown.processes == {client.pid: shown.used}
