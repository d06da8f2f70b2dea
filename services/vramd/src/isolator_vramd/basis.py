"""The answer: the smallest memory of one GPU among the nodes that a pod can land on, or why it is unknown."""

from dataclasses import dataclass
from enum import Enum

from isolator_vramd.affinity import Parsed
from isolator_vramd.index import NodeIndex
from isolator_vramd.memory import Memory


class Cause(Enum):
    """Why a basis is unknown."""

    NOT_READ = "not read"
    NO_GPU_NODE = "no GPU node"
    NONE_ELIGIBLE = "none eligible"
    NO_MEMORY = "no memory"


@dataclass(frozen=True)
class Basis:
    """MiB of one GPU, and of which nodes. Set by hand (`override`), it stands for itself and has no nodes.

    `distribution` is (MiB, number of nodes), smallest first; `nodes_without_memory` were considered and tell nothing.
    """

    basis_mib: int
    distribution: tuple[tuple[int, int], ...] = ()
    nodes_without_memory: int = 0
    override: bool = False

    @property
    def nodes(self) -> int:
        """How many nodes were considered and tell their memory."""
        return sum(count for _, count in self.distribution)

    @property
    def heterogeneous(self) -> bool:
        """Whether these nodes differ in memory."""
        return len(self.distribution) > 1


@dataclass(frozen=True)
class Unknown:
    """No basis, and why, in a sentence for people."""

    cause: Cause
    reason: str


Answer = Basis | Unknown

NOT_READ = Unknown(Cause.NOT_READ, "the nodes were not read yet")


def basis_of(index: NodeIndex, constraints: Parsed) -> Answer:
    """The smallest memory among the nodes that a pod with these constraints can land on.

    Nodes that take no shares do not count. Nodes that do not tell their memory are counted apart and never guessed:
    the basis is that of the others, and it is unknown where there are no others.
    """
    eligible = index.eligible(constraints)
    taking = eligible & ~index.no_share
    distribution = index.distribution(taking)
    silent = taking & index.no_memory
    if distribution:
        return Basis(distribution[0][0], distribution, silent.bit_count())
    if silent:
        return Unknown(
            Cause.NO_MEMORY,
            f"none of {silent.bit_count()} GPU nodes tells its GPU's memory; {_example(index, silent)}",
        )
    if not index.every & ~index.no_share:
        refused = f"; {_example(index, index.no_share)}" if index.no_share else ""
        return Unknown(Cause.NO_GPU_NODE, f"there is no GPU node that takes shares{refused}")
    refused = f"; {_example(index, eligible)}" if eligible else ""
    return Unknown(
        Cause.NONE_ELIGIBLE, f"none of {len(index)} GPU nodes takes shares and satisfies the pod's constraints{refused}"
    )


def _example(index: NodeIndex, nodes: int) -> str:
    node = next(index.nodes(nodes))
    return node.name if isinstance(node.memory, Memory) else f"{node.name}: {node.memory.reason}"
