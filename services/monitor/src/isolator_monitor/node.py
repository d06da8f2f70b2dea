"""One reading of the node, as plain values, and who can give one."""

from typing import Protocol

import msgspec

from isolator_monitor.cgroups import Owner
from isolator_monitor.gpus import Gpu
from isolator_monitor.readings import Reading
from isolator_monitor.targets import Target


class NodeReading(msgspec.Struct, frozen=True):
    """One reading of the node."""

    taken: float
    """Unix seconds."""
    clock: float
    """The same moment by the node's monotonic clock, which all its containers share: for durations."""
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


class Node(Protocol):
    """Something that can be asked for a reading."""

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        """Read the containers' files, the GPUs, and who uses them."""
