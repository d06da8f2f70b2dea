"""MiB of memory of one physical GPU of a node, from what the node says of itself. One function a rule.

A node that has a GPU but gives no valid figure has an unknown memory, with a reason: it is told, and nothing is guessed
for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_LABEL = "nvidia.com/gpu.memory"
PRESENT_LABEL = "nvidia.com/gpu.present"
COUNT_LABEL = "nvidia.com/gpu.count"
GPU_RESOURCE = "nvidia.com/gpu"

BYTES_FROM = 1_048_576
"""Label values from here up are bytes (KAI: `getNodeGpuMemory`, a work-around for some GPU feature discoveries)."""


@dataclass(frozen=True)
class Memory:
    """MiB of the node's smallest GPU, at least 1."""

    mib: int


@dataclass(frozen=True)
class NoMemory:
    """A GPU node that gives no valid figure, and why, for people."""

    reason: str


def has_gpu(labels: Mapping[str, str], capacity: Mapping[str, str]) -> bool:
    """Whether a node has an NVIDIA GPU: the labels of GPU feature discovery or the device plugin's resource say so."""
    return (
        MEMORY_LABEL in labels
        or labels.get(PRESENT_LABEL) == "true"
        or labels.get(COUNT_LABEL, "0") != "0"
        or capacity.get(GPU_RESOURCE, "0") != "0"
    )


def memory_from_label(value: str) -> Memory | NoMemory:
    """The label `nvidia.com/gpu.memory`: MiB, or bytes from 1,048,576 up.

    Source: KAI `pkg/scheduler/api/node_info/node_info.go` getNodeGpuMemory. KAI floors to a multiple of 100 for its
    portion; the limit comes from the unfloored label (`pkg/binder/plugins/hamicore/hami_core.go`), and so does the
    basis.
    """
    if re.fullmatch(r"[0-9]+", value, re.ASCII) is None or len(value.lstrip("0")) > 18:
        return NoMemory(f"label {MEMORY_LABEL} is {value!r}: a number of MiB or bytes is accepted")
    number = int(value)
    if number == 0:
        return NoMemory(f"label {MEMORY_LABEL} is {value!r}: it must be above 0")
    return Memory(number // BYTES_FROM if number >= BYTES_FROM else number)


def memory_of(labels: Mapping[str, str], capacity: Mapping[str, str]) -> Memory | NoMemory | None:
    """The memory of one GPU of the node; None for a node without a GPU."""
    if not has_gpu(labels, capacity):
        return None
    label = labels.get(MEMORY_LABEL)
    return NoMemory(f"label {MEMORY_LABEL} is missing") if label is None else memory_from_label(label)
