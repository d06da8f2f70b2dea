"""Nodes as the API serves them, decoded to what the basis needs, and the GPU nodes among them."""

from collections.abc import Iterable

import msgspec

from isolator_vramd.memory import Memory, NoMemory, memory_of


class Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None


class Status(msgspec.Struct):
    capacity: dict[str, str] | None = None


class Node(msgspec.Struct):
    """A Kubernetes Node; fields that are not named here are skipped while decoding."""

    metadata: Metadata
    status: Status = msgspec.field(default_factory=Status)
    kind: str = "Node"


class NodeList(msgspec.Struct):
    """A NodeList, or the List that `kubectl get nodes -o yaml` prints."""

    items: list[Node]
    kind: str = "NodeList"


class GpuNode(msgspec.Struct, frozen=True):
    """A node with a GPU: its name, its labels and the memory of its smallest GPU."""

    name: str
    labels: dict[str, str]
    memory: Memory | NoMemory


def gpu_node(node: Node) -> GpuNode | None:
    """What the basis needs of a node; None for a node without a GPU."""
    labels = node.metadata.labels or {}
    memory = memory_of(labels, node.status.capacity or {})
    return None if memory is None else GpuNode(node.metadata.name, labels, memory)


def gpu_nodes(nodes: Iterable[Node]) -> dict[str, GpuNode]:
    """The GPU nodes among these, by name."""
    return {node.name: node for node in map(gpu_node, nodes) if node is not None}
