"""The basis as the webhook needs it, and where it comes from: vramd, or a number given by hand."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

import grpc

from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_webhook.pod import PodSpec, SelectorRequirement


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


def _requirements(found: Iterable[SelectorRequirement] | None) -> list[vram_pb2.NodeSelectorRequirement]:
    return [
        vram_pb2.NodeSelectorRequirement(key=one.key, operator=one.operator, values=one.values or ())
        for one in found or ()
    ]


def question(spec: PodSpec) -> vram_pb2.GetBasisRequest:
    """What vramd is asked about a pod: its node selector, required node affinity and node name."""
    required = spec.required_node_affinity
    affinity = None
    if required is not None:
        affinity = vram_pb2.RequiredNodeAffinity(
            terms=[
                vram_pb2.NodeSelectorTerm(
                    match_expressions=_requirements(term.match_expressions),
                    match_fields=_requirements(term.match_fields),
                )
                for term in required.node_selector_terms or ()
            ]
        )
    return vram_pb2.GetBasisRequest(
        node_selector=spec.node_selector or {}, required_node_affinity=affinity, node_name=spec.node_name
    )


def known(basis: vram_pb2.Basis) -> Known:
    """vramd's basis; its distribution goes from the smallest GPU to the largest."""
    largest = basis.distribution[-1].memory_mib if basis.distribution else basis.basis_mib
    return Known(basis.basis_mib, largest)


class Vramd:
    """Asks vramd over gRPC. Whatever goes wrong there is an answer, `Unknown`, within the deadline in seconds."""

    def __init__(self, address: str, deadline: float) -> None:
        self._address = address
        self._deadline = deadline
        self._channel = grpc.aio.insecure_channel(address)
        self._get_basis = vram_pb2_grpc.VramStub(self._channel).GetBasis  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> "Vramd":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def ask(self, spec: PodSpec) -> Basis:
        """The basis for a pod."""
        try:
            response = await self._get_basis(question(spec), timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            return Unknown(f"vramd at {self._address} did not answer: {error.code().name}: {error.details()}")
        if response.WhichOneof("answer") == "basis" and response.basis.basis_mib > 0:
            return known(response.basis)
        return Unknown(response.unknown.reason or f"vramd at {self._address} gave an empty answer")
