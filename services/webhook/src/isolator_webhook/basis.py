"""The basis as the webhook needs it: what is known, or why nothing is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from isolator_webhook.pod import PodSpec


@dataclass(frozen=True, slots=True)
class Known:
    """MiB of the smallest GPU that the pod can land on, and of the largest."""

    mib: int
    most_mib: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No basis, and a sentence that says why."""

    reason: str


Basis = Known | Unknown
AskBasis = Callable[[PodSpec], Awaitable[Basis]]


def always(basis: Basis) -> AskBasis:
    """A source that gives the same answer for every pod."""

    async def ask(_spec: PodSpec) -> Basis:
        return basis

    return ask
