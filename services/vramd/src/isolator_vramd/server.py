"""The gRPC service: turns requests into constraints and answers into messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from isolator_core.errors import UserError
from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_vramd.affinity import Constraints, Requirement, Term, compile_constraints
from isolator_vramd.basis import Answer, Unknown, basis_for
from isolator_vramd.nodes import GpuNode

Context: TypeAlias = "grpc.aio.ServicerContext[vram_pb2.GetBasisRequest, vram_pb2.GetBasisResponse]"
SERVICE = vram_pb2.DESCRIPTOR.services_by_name["Vram"].full_name


class State:
    """What is known of the nodes at the moment."""

    def __init__(self, nodes: dict[str, GpuNode], override_mib: int | None) -> None:
        self.nodes = nodes
        self.override_mib = override_mib


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


def response_of(answer: Answer) -> vram_pb2.GetBasisResponse:
    """The message for an answer."""
    if isinstance(answer, Unknown):
        return vram_pb2.GetBasisResponse(unknown=vram_pb2.Unknown(reason=answer.reason))
    source = vram_pb2.SOURCE_OVERRIDE if answer.override else vram_pb2.SOURCE_NODES
    return vram_pb2.GetBasisResponse(
        basis=vram_pb2.Basis(basis_mib=answer.basis_mib, source=source, nodes=answer.nodes)
    )


class VramService(vram_pb2_grpc.VramServicer):
    """Answers from the state at the moment of the call."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def GetBasis(  # noqa: N802
        self,
        request: vram_pb2.GetBasisRequest,
        context: Context,  # noqa: ARG002
    ) -> vram_pb2.GetBasisResponse:
        constraints = compile_constraints(constraints_of(request))
        return response_of(basis_for(self._state.nodes, self._state.override_mib, constraints))


class Server:
    """A listening server with the standard health service and reflection."""

    def __init__(self, state: State, address: str, port: int) -> None:
        # Without SO_REUSEPORT off, a second server on the same port would start and take half the calls.
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._health = health.aio.HealthServicer()
        vram_pb2_grpc.add_VramServicer_to_server(VramService(state), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            self.port = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise UserError(f"cannot listen on {where}: is the address right, is the port free?") from error

    async def start(self) -> None:
        """Start to answer, and say SERVING on the health service."""
        await self._server.start()
        for service in (health.OVERALL_HEALTH, SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, let calls at work end within the grace, and close."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
