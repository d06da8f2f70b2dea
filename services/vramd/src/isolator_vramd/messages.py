"""Between the messages of `vram.proto` and this program's own types."""

from collections.abc import Sequence

from isolator_core.proto import vram_pb2
from isolator_vramd.affinity import Constraints, Requirement, Term
from isolator_vramd.basis import Answer, Cause, Unknown
from isolator_vramd.index import Running
from isolator_vramd.memory import PRODUCT_LABEL, Memory, NoMemory
from isolator_vramd.nodes import GpuNode

_CAUSES = {
    Cause.NOT_READ: vram_pb2.CAUSE_NOT_READ,
    Cause.NO_GPU_NODE: vram_pb2.CAUSE_NO_GPU_NODE,
    Cause.NONE_ELIGIBLE: vram_pb2.CAUSE_NONE_ELIGIBLE,
    Cause.NO_MEMORY: vram_pb2.CAUSE_NO_MEMORY,
}
_ORIGINS = {
    "label": vram_pb2.MEMORY_ORIGIN_LABEL,
    "hami": vram_pb2.MEMORY_ORIGIN_HAMI,
    "unified": vram_pb2.MEMORY_ORIGIN_UNIFIED,
}


def _requirements(messages: Sequence[vram_pb2.NodeSelectorRequirement]) -> tuple[Requirement, ...]:
    return tuple(Requirement(m.key, m.operator, tuple(m.values)) for m in messages)


def constraints_of(request: vram_pb2.GetBasisRequest) -> Constraints:
    """The constraints that a request carries."""
    terms = None
    if request.HasField("required_node_affinity"):
        terms = tuple(
            Term(_requirements(term.match_expressions), _requirements(term.match_fields))
            for term in request.required_node_affinity.terms
        )
    return Constraints(dict(request.node_selector), terms, request.node_name)


def response_of(
    answer: Answer, age_seconds: float | None, software: Sequence[Running] = ()
) -> vram_pb2.GetBasisResponse:
    """The message for an answer of this age, and for what the nodes run."""
    told = [
        vram_pb2.NodeSoftware(
            kubelet_version=running.software.kubelet_version,
            container_runtime_version=running.software.container_runtime_version,
            nodes=running.nodes,
            example=running.example,
        )
        for running in software
    ]
    if isinstance(answer, Unknown):
        unknown = vram_pb2.Unknown(reason=answer.reason, cause=_CAUSES[answer.cause])
        return vram_pb2.GetBasisResponse(unknown=unknown, age_seconds=age_seconds, software=told)
    basis = vram_pb2.Basis(
        basis_mib=answer.basis_mib,
        source=vram_pb2.SOURCE_OVERRIDE if answer.override else vram_pb2.SOURCE_NODES,
        nodes=answer.nodes,
        distribution=[vram_pb2.MemoryCount(memory_mib=mib, nodes=count) for mib, count in answer.distribution],
        heterogeneous=answer.heterogeneous,
        nodes_without_memory=answer.nodes_without_memory,
    )
    return vram_pb2.GetBasisResponse(basis=basis, age_seconds=age_seconds, software=told)


def node_message(node: GpuNode) -> vram_pb2.GpuNode:
    """The message for a GPU node."""
    message = vram_pb2.GpuNode(
        name=node.name,
        product=node.labels.get(PRODUCT_LABEL, ""),
        kubelet_version=node.software.kubelet_version,
        container_runtime_version=node.software.container_runtime_version,
    )
    if isinstance(node.memory, Memory):
        message.memory_mib = node.memory.mib
        message.origin = _ORIGINS[node.memory.origin]
    elif isinstance(node.memory, NoMemory):
        message.unknown = node.memory.reason
    else:
        message.takes_no_share = node.memory.reason
    return message
