"""Nodes as the API serves them, decoded to what the basis needs, and the GPU nodes among them."""

from collections.abc import Iterable
from sys import intern

import msgspec

from isolator_vramd.memory import HAMI_ANNOTATION, NodeFacts, NodeMemory, memory_of


class Annotations(msgspec.Struct):
    """The one annotation that is read; a node's others may be long and are skipped."""

    hami_register: str = msgspec.field(default="", name=HAMI_ANNOTATION)


class Metadata(msgspec.Struct):
    """`metadata`; a file may lack the name, the API never does."""

    name: str = ""
    labels: dict[str, str] | None = None
    annotations: Annotations | None = None


class NodeInfo(msgspec.Struct, rename="camel"):
    """`status.nodeInfo`."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class Status(msgspec.Struct, rename="camel"):
    """`status`."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    node_info: NodeInfo | None = None


class Node(msgspec.Struct):
    """A Kubernetes Node; fields that are not named here are skipped while decoding."""

    metadata: Metadata
    status: Status | None = None
    kind: str = "Node"


class NodeList(msgspec.Struct):
    """A NodeList, or the List that `kubectl get nodes -o yaml` prints."""

    items: list[Node] | None
    kind: str = "NodeList"


class Software(msgspec.Struct, frozen=True, gc=False, order=True):
    """What a node runs: versions as its `status.nodeInfo` tells them."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class GpuNode(msgspec.Struct, frozen=True, gc=False):
    """A node with a GPU: its name, its labels and the memory of its smallest GPU."""

    name: str
    labels: dict[str, str]
    memory: NodeMemory
    software: Software = Software()


def gpu_node(node: Node) -> GpuNode | None:
    """What the basis needs of a node; None for a node without a GPU."""
    status = node.status or Status()
    labels = node.metadata.labels or {}
    annotations = node.metadata.annotations or Annotations()
    memory = memory_of(NodeFacts(labels, status.capacity or {}, status.allocatable or {}, annotations.hami_register))
    if memory is None:
        return None
    info = status.node_info or NodeInfo()
    return GpuNode(
        node.metadata.name,
        # Thousands of nodes share most keys and values: one copy of each saves tens of megabytes.
        {intern(key): intern(value) for key, value in labels.items()},
        memory,
        Software(intern(info.kubelet_version), intern(info.container_runtime_version)),
    )


def gpu_nodes(nodes: Iterable[Node]) -> list[GpuNode]:
    """The GPU nodes among these."""
    return [found for found in map(gpu_node, nodes) if found is not None]
