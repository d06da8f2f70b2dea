"""The program in the demo's containers: uses the GPU through NVIDIA's own bindings, as it is told.

A command a line on standard input, a JSON object a line on standard output; it ends with its input, and what it holds
with it. Arguments are those of the program that it stands in for, and are ignored.

    info                what CUDA and NVML say about device 0
    alloc MIB           one cuMemAlloc; keeps the memory
    fill                as many allocations as are granted, from 1 GiB down to 1 MiB each
    free                give everything back
    environment NAME    the variable as the process was started with it
"""

import json
import sys
from pathlib import Path
from typing import Any

import pynvml
from cuda.bindings import driver

MIB = 1 << 20


def ok(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call that has to succeed."""
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error.name)
    return values[0] if len(values) == 1 else tuple(values)


class Workload:
    """One process's use of device 0."""

    def __init__(self) -> None:
        ok(driver.cuInit(0))
        self.device = ok(driver.cuDeviceGet(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(self.device))))
        pynvml.nvmlInit()
        self.card = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.held: list[tuple[Any, int]] = []

    def held_bytes(self) -> int:
        return sum(size for _pointer, size in self.held)

    def allocate(self, size: int) -> str:
        error, pointer = driver.cuMemAlloc(size)
        if error == driver.CUresult.CUDA_SUCCESS:
            self.held.append((pointer, size))
        return str(error.name)

    def alloc(self, mib: str) -> dict[str, Any]:
        return {"result": self.allocate(int(mib) * MIB), "held_bytes": self.held_bytes()}

    def fill(self) -> dict[str, Any]:
        size, result = 1024 * MIB, ""
        while size >= MIB:
            result = self.allocate(size)
            if result != "CUDA_SUCCESS":
                size //= 2
        return {"result": result, "held_bytes": self.held_bytes()}

    def free(self) -> dict[str, Any]:
        while self.held:
            ok(driver.cuMemFree(self.held.pop()[0]))
        return {"held_bytes": 0}

    def info(self) -> dict[str, Any]:
        free, total = ok(driver.cuMemGetInfo())
        memory = pynvml.nvmlDeviceGetMemoryInfo(self.card)
        return {
            "name": pynvml.nvmlDeviceGetName(self.card),
            "uuid": pynvml.nvmlDeviceGetUUID(self.card),
            "cuMemGetInfo": {"free_bytes": free, "total_bytes": total},
            "cuDeviceTotalMem": {"total_bytes": ok(driver.cuDeviceTotalMem(self.device))},
            "nvmlDeviceGetMemoryInfo": {
                "total_bytes": memory.total,
                "used_bytes": memory.used,
                "free_bytes": memory.free,
            },
        }

    def environment(self, name: str) -> dict[str, Any]:
        entries = Path("/proc/self/environ").read_text().split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if entry)
        return {"value": variables.get(name), "variables": len(variables)}


def main() -> None:
    try:
        workload = Workload()
    except (RuntimeError, pynvml.NVMLError) as error:
        print(json.dumps({"start": str(error)}), flush=True)
        raise SystemExit(1) from error
    print(json.dumps({"start": "ready"}), flush=True)
    commands = {name: getattr(workload, name) for name in ("info", "alloc", "fill", "free", "environment")}
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps({"command": line.strip(), **commands[name](*arguments)}), flush=True)


if __name__ == "__main__":
    main()
