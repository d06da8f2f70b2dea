"""The basis as the webhook needs it: what is known, or why nothing is."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from isolator_webhook.pod import PodSpec


class NodeSoftware(Struct, frozen=True):
    """What some of the GPU nodes run that the pod can land on, how many these are, and the name of one."""

    kubelet_version: str
    container_runtime_version: str
    nodes: int
    example: str


class Known(Struct, frozen=True, cache_hash=True):
    """MiB of the smallest GPU that the pod can land on, and of the largest.

    `software` is known where it was asked for and vramd has read the nodes.
    """

    mib: int
    most_mib: int
    software: tuple[NodeSoftware, ...] = ()


class Unknown(Struct, frozen=True, cache_hash=True):
    """No basis, and a sentence that says why. `software` may be known all the same."""

    reason: str
    software: tuple[NodeSoftware, ...] = ()


Basis = Known | Unknown
AskBasis = Callable[[PodSpec], Awaitable[Basis]]


def always(basis: Basis) -> AskBasis:
    """A source that gives the same answer for every pod."""

    async def ask(_spec: PodSpec) -> Basis:
        return basis

    return ask
