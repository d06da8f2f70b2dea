"""The answer: the smallest memory of one GPU among the nodes that a pod can land on, or why it is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass

from isolator_vramd.affinity import Compiled, matches
from isolator_vramd.memory import Memory
from isolator_vramd.nodes import GpuNode


@dataclass(frozen=True)
class Basis:
    """MiB of one GPU and how many nodes have a valid figure; `nodes` is 0 where the basis was set by hand."""

    basis_mib: int
    nodes: int
    override: bool = False


@dataclass(frozen=True)
class Unknown:
    """No basis, and why, in a sentence for people."""

    reason: str


Answer = Basis | Unknown


def basis_for(nodes: Mapping[str, GpuNode], override_mib: int | None, constraints: Compiled) -> Answer:
    """The basis of a pod with these constraints. PER_GPU_VRAM_MIB (`override_mib`) wins over every node."""
    if override_mib is not None:
        return Basis(override_mib, 0, override=True)
    eligible = [node for node in nodes.values() if matches(constraints, node.name, node.labels)]
    known = [node.memory.mib for node in eligible if isinstance(node.memory, Memory)]
    if known:
        return Basis(min(known), len(known))
    if not nodes:
        return Unknown("there is no GPU node")
    if not eligible:
        return Unknown(f"none of the {len(nodes)} GPU nodes satisfies the pod's node constraints")
    first = min(eligible, key=lambda node: node.name)
    reason = "" if isinstance(first.memory, Memory) else first.memory.reason
    return Unknown(f"none of the {len(eligible)} GPU nodes tells its GPU's memory; {first.name}: {reason}")
