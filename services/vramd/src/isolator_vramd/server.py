"""The gRPC server: the service `Vram`, the standard health service and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from isolator_core.errors import UserError
from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_vramd.affinity import Parsed, parse_constraints
from isolator_vramd.messages import constraints_of, node_message, response_of
from isolator_vramd.metrics import Calls
from isolator_vramd.store import NodeStore

SERVICE = vram_pb2.DESCRIPTOR.services_by_name["Vram"].full_name

MOST_REQUIREMENTS = 256
MOST_VALUES = 4096
MOST_COMPARISONS = 16
"""More in one request are refused: a pod's author writes them, and the longest would hold up everyone else's answer.

The first comparison (Gt, Lt) of a label after a change puts its values in order, thousands where each node has its own.
"""

COALESCE_SECONDS = 0.02
"""Changes within this time reach a subscriber as one, so that thousands of nodes that change at once cost little."""

NODES_A_MESSAGE = 500

OPTIONS = [
    # With SO_REUSEPORT a second server on the same port would start and take half of the calls.
    ("grpc.so_reuseport", 0),
    # Find out that a subscriber's machine is gone.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Clients may do the same without being called abusive.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]
MOST_CALLS = 1_000
MOST_SUBSCRIBERS = 500
"""Streams stay open; some calls are left for questions, however many there are."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class VramService(vram_pb2_grpc.VramServicer):
    """Answers from what the store knows at the moment of the call."""

    def __init__(self, store: NodeStore, calls: Calls) -> None:
        self._store = store
        self._calls = calls
        self._stopping = False
        self._subscribers = 0

    def stop(self) -> None:
        """End all streams, so that subscribers turn to another replica."""
        self._stopping = True
        self._store.wake()

    async def GetBasis(  # noqa: N802
        self, request: vram_pb2.GetBasisRequest, context: Context
    ) -> vram_pb2.GetBasisResponse:
        with self._calls.timed():
            constraints = await self._parse(request, context)
            answer = self._store.answer(constraints)
            self._calls.answered(answer)
            running = self._store.running(constraints) if request.with_software else ()
            return response_of(answer, self._store.age_seconds(), running)

    async def WatchBasis(  # noqa: N802
        self, request: vram_pb2.WatchBasisRequest, context: Context
    ) -> AsyncIterator[vram_pb2.GetBasisResponse]:
        constraints = await self._parse(request.constraints, context)
        if self._subscribers >= MOST_SUBSCRIBERS:
            text = f"{self._subscribers} subscribers are served already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        last = None
        with self._subscribed():
            while not self._stopping:
                version = self._store.version
                answer = self._store.answer(constraints)
                running = self._store.running(constraints) if request.constraints.with_software else ()
                if (answer, running) != last:
                    last = answer, running
                    yield response_of(answer, self._store.age_seconds(), running)
                await self._store.changed_since(version)
                if not self._stopping:
                    await asyncio.sleep(COALESCE_SECONDS)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "vramd is stopping")

    async def ListGpuNodes(  # noqa: N802
        self, request: vram_pb2.ListGpuNodesRequest, context: Context
    ) -> AsyncIterator[vram_pb2.ListGpuNodesResponse]:
        constraints = await self._parse(request.constraints, context)
        if not self._store.read:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the nodes were not read yet")
        index = self._store.index
        nodes = sorted(index.nodes(index.eligible(constraints)), key=lambda node: node.name)
        for start in range(0, len(nodes), NODES_A_MESSAGE):
            page = nodes[start : start + NODES_A_MESSAGE]
            yield vram_pb2.ListGpuNodesResponse(nodes=map(node_message, page))

    @contextmanager
    def _subscribed(self) -> Iterator[None]:
        self._subscribers += 1
        self._calls.subscribers.inc()
        try:
            yield
        finally:
            self._subscribers -= 1
            self._calls.subscribers.dec()

    async def _parse(self, request: vram_pb2.GetBasisRequest, context: Context) -> Parsed:
        refusal = _too_much(request)
        if refusal is not None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal)
        return parse_constraints(constraints_of(request))


def _too_much(request: vram_pb2.GetBasisRequest) -> str | None:
    """What of a request is more than accepted, None where nothing is."""
    terms = request.required_node_affinity.terms
    count = len(request.node_selector) + sum(len(t.match_expressions) + len(t.match_fields) for t in terms)
    if max(count, len(terms)) > MOST_REQUIREMENTS:
        return (
            f"{count} node selector entries and requirements in {len(terms)} terms; at most {MOST_REQUIREMENTS} "
            "are accepted"
        )
    requirements = [one for t in terms for part in (t.match_expressions, t.match_fields) for one in part]
    values = sum(len(one.values) for one in requirements)
    if values > MOST_VALUES:
        return f"{values} values in required node affinity; at most {MOST_VALUES} are accepted"
    comparisons = sum(one.operator in ("Gt", "Lt") for one in requirements)
    if comparisons > MOST_COMPARISONS:
        return f"{comparisons} comparisons (Gt, Lt); at most {MOST_COMPARISONS} are accepted"
    return None


class Server:
    """A listening server. Says SERVING on the health service once the store is ready."""

    def __init__(
        self,
        store: NodeStore,
        calls: Calls,
        address: str,
        port: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
        self._store = store
        self._health = health.aio.HealthServicer()
        self._service = VramService(store, calls)
        vram_pb2_grpc.add_VramServicer_to_server(self._service, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, credentials)
        except RuntimeError as error:
            raise UserError(f"cannot listen on {where}: is the address right, is the port free?") from error

    async def start(self) -> None:
        """Start to answer. The health service says NOT_SERVING until `follow_health` has seen the store ready."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def follow_health(self) -> None:
        """Wait until the store is ready, then say SERVING."""
        while not self._store.ready:
            await self._store.changed_since(self._store.version)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, end streams, let calls at work end within the grace, and close."""
        await self._health.enter_graceful_shutdown()
        self._service.stop()
        await self._server.stop(grace_seconds)

    async def _set_health(self, status: Any) -> None:
        for service in (health.OVERALL_HEALTH, SERVICE):
            await self._health.set(service, status)
