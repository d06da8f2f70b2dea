"""All that is read on the node for one snapshot. This part sees tenants' bytes; it needs neither network nor API."""

import time
from pathlib import Path

import msgspec

from isolator_core import names
from isolator_monitor import cgroups
from isolator_monitor.cgroups import Owner
from isolator_monitor.gpus import Gpu, PatientNvml
from isolator_monitor.readings import Reading, Roots, read_all
from isolator_monitor.targets import Target


class NodeReading(msgspec.Struct, frozen=True):
    """One reading of the node."""

    taken: float
    """Unix seconds."""
    seconds: float
    """How long it took."""
    readings: tuple[Reading, ...]
    gpus: tuple[Gpu, ...]
    nvml_error: str
    nvml_failures: dict[str, int]
    owners: dict[int, Owner]
    """By PID, of the processes that NVML names."""
    host_problem: str
    """What is wrong with the library's files on the host; empty if nothing is, or if they are not looked at."""


class Node:
    """This node."""

    def __init__(self, roots: Roots, host_dir: Path | None, nvml_patience_seconds: float) -> None:
        self._roots = roots
        self._host_dir = host_dir
        self._nvml = PatientNvml(nvml_patience_seconds)

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        """Read the containers' files, the GPUs, and who uses them."""
        started = time.monotonic()
        found = self._nvml.read()
        pids = {process.pid for gpu in found.gpus for process in gpu.processes or ()}
        readings = read_all(targets, self._roots)
        return NodeReading(
            taken=time.time(),
            seconds=time.monotonic() - started,
            readings=readings,
            gpus=found.gpus,
            nvml_error=found.error,
            nvml_failures=found.failures,
            owners=cgroups.owners(pids),
            host_problem=host_problem(self._host_dir) if self._host_dir else "",
        )


def host_problem(host_dir: Path) -> str:
    """What stands in place of the library's files on the host: a runtime makes a directory where a file is missing."""
    for name in (names.LIBRARY_FILE, names.PRELOAD_FILE):
        path = host_dir / name
        if path.is_dir():
            return f"{path} is a directory"
    return ""
