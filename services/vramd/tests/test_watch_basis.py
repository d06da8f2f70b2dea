"""WatchBasis and ListGpuNodes, over real gRPC on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_vramd import server
from isolator_vramd.memory import Memory, NodeMemory, NoMemory, NoShare
from isolator_vramd.metrics import Calls
from isolator_vramd.nodes import GpuNode, Software
from isolator_vramd.server import MOST_COMPARISONS, MOST_REQUIREMENTS, MOST_VALUES, NODES_A_MESSAGE, Server
from isolator_vramd.store import NodeStore

WAIT_SECONDS = 30.0
NEW = Software("v1.36.1", "containerd://2.2.0")
OLD = Software("v1.34.2", "containerd://1.7.27")


@dataclass
class Running:
    store: NodeStore
    server: Server
    channel: grpc.aio.Channel
    stub: vram_pb2_grpc.VramStub
    registry: CollectorRegistry


@asynccontextmanager
async def running(override_mib: int | None = None) -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    store = NodeStore(override_mib, asyncio.get_running_loop().time)
    server = Server(store, Calls(registry), "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Running(store, server, channel, vram_pb2_grpc.VramStub(channel), registry)
    await server.stop(0)


def node(name: str, memory: NodeMemory | int, **labels: str) -> GpuNode:
    return GpuNode(name, labels, Memory(memory) if isinstance(memory, int) else memory)


async def after(stream: object, seconds: float = WAIT_SECONDS) -> vram_pb2.GetBasisResponse:
    return await asyncio.wait_for(stream.read(), seconds)  # type: ignore[attr-defined]


def test_answers_come_at_once_and_at_every_change_and_never_twice() -> None:
    async def check() -> None:
        async with running() as vramd:
            stream = vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest())
            first = await after(stream)
            assert first.unknown.cause == vram_pb2.CAUSE_NOT_READ
            assert not first.HasField("age_seconds")
            vramd.store.replace([node("a", 100), node("b", 200)])
            second = await after(stream)
            assert [(c.memory_mib, c.nodes) for c in second.basis.distribution] == [(100, 1), (200, 1)]
            assert second.basis.heterogeneous
            assert second.age_seconds >= 0
            # Confirmed, replaced by the same, another label, and there and back in one step: nothing to tell.
            vramd.store.confirm()
            vramd.store.replace([node("a", 100), node("b", 200)])
            vramd.store.apply([("a", node("a", 100, zone="x"))])
            vramd.store.apply([("b", None)])
            vramd.store.apply([("b", node("b", 200))])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(pending := asyncio.ensure_future(stream.read())), 0.3)
            vramd.store.apply([("a", None)])
            third = await asyncio.wait_for(pending, WAIT_SECONDS)
            assert (third.basis.basis_mib, third.basis.nodes, third.basis.heterogeneous) == (200, 1, False)
            vramd.store.apply([("b", None)])
            assert (await after(stream)).unknown.cause == vram_pb2.CAUSE_NO_GPU_NODE

    asyncio.run(check())


def test_subscriber_with_constraints_hears_of_its_own_nodes_only() -> None:
    async def check() -> None:
        async with running() as vramd:
            vramd.store.replace([node("a", 100, pool="x"), node("b", 200, pool="y")])
            request = vram_pb2.WatchBasisRequest(constraints={"node_selector": {"pool": "y"}})
            stream = vramd.stub.WatchBasis(request)
            assert (await after(stream)).basis.basis_mib == 200
            vramd.store.apply([("a", node("a", 50, pool="x"))])
            vramd.store.apply([("c", node("c", 150, pool="y"))])
            answer = await after(stream)
            assert (answer.basis.basis_mib, answer.basis.nodes) == (150, 2)

    asyncio.run(check())


def test_streams_end_with_unavailable_when_the_server_stops() -> None:
    async def check() -> None:
        async with running() as vramd:
            stream = vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest())
            await after(stream)
            stopping = asyncio.ensure_future(vramd.server.stop(WAIT_SECONDS))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await after(stream)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            await asyncio.wait_for(stopping, WAIT_SECONDS / 2)

    asyncio.run(check())


def test_subscriber_that_goes_is_forgotten() -> None:
    async def check() -> None:
        async with running() as vramd:
            stream = vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest())
            await after(stream)
            assert vramd.registry.get_sample_value("isolator_vramd_subscribers") == 1
            stream.cancel()
            for _ in range(int(WAIT_SECONDS / 0.02)):
                if vramd.registry.get_sample_value("isolator_vramd_subscribers") == 0:
                    break
                await asyncio.sleep(0.02)
            assert vramd.registry.get_sample_value("isolator_vramd_subscribers") == 0

    asyncio.run(check())


def test_subscribers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_SUBSCRIBERS", 1)

    async def check() -> None:
        async with running() as vramd:
            first = vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest())
            await after(first)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await after(vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest()))
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await vramd.stub.GetBasis(vram_pb2.GetBasisRequest())).HasField("unknown")

    asyncio.run(check())


def test_reflection_describes_the_service() -> None:
    async def check() -> None:
        async with running() as vramd:
            stub = reflection_pb2_grpc.ServerReflectionStub(vramd.channel)
            call = stub.ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            services = {service.name for service in (await after(call)).list_services_response.service}
            assert {"isolator.vram.v1.Vram", "grpc.health.v1.Health"} <= services
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="isolator.vram.v1.Vram"))
            [described] = (await after(call)).file_descriptor_response.file_descriptor_proto
            assert b"ListGpuNodes" in described
            await call.done_writing()

    asyncio.run(check())


def test_health_is_serving_once_the_nodes_were_read() -> None:
    async def check() -> None:
        async with running() as vramd:
            following = asyncio.ensure_future(vramd.server.follow_health())
            stub = health_pb2_grpc.HealthStub(vramd.channel)  # type: ignore[no-untyped-call]
            stream = stub.Watch(health_pb2.HealthCheckRequest(service="isolator.vram.v1.Vram"))
            assert (await after(stream)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            vramd.store.replace([])
            assert (await after(stream)).status == health_pb2.HealthCheckResponse.SERVING
            await asyncio.wait_for(following, WAIT_SECONDS)

    asyncio.run(check())


def test_what_nodes_run_is_told_where_it_was_asked_for() -> None:
    async def check() -> None:
        async with running(override_mib=24576) as vramd:
            asked = vram_pb2.GetBasisRequest(with_software=True)
            assert not (await vramd.stub.GetBasis(asked)).software, "the nodes were not read yet"
            stream = vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest(constraints=asked))
            assert not (await after(stream)).software
            t4 = [GpuNode(name, {"pool": name}, Memory(15360), NEW) for name in ("a", "b")]
            vramd.store.replace([*t4, GpuNode("c", {}, Memory(15360), OLD), GpuNode("d", {}, NoShare("cut"), NEW)])
            told = await after(stream)
            assert told.basis.basis_mib == 24576
            assert [(s.kubelet_version, s.container_runtime_version, s.nodes, s.example) for s in told.software] == [
                ("v1.34.2", "containerd://1.7.27", 1, "c"),
                ("v1.36.1", "containerd://2.2.0", 2, "a"),
            ]
            assert not (await vramd.stub.GetBasis(vram_pb2.GetBasisRequest())).software
            asked.node_selector["pool"] = "b"
            (alone,) = (await vramd.stub.GetBasis(asked)).software
            assert (alone.nodes, alone.example) == (1, "b")
            vramd.store.apply([("c", GpuNode("c", {}, Memory(15360), NEW))])
            assert [s.nodes for s in (await after(stream)).software] == [3]

    asyncio.run(check())


def test_override_is_served_before_the_nodes_were_read() -> None:
    async def check() -> None:
        async with running(override_mib=24576) as vramd:
            await asyncio.wait_for(vramd.server.follow_health(), WAIT_SECONDS)
            answer = await vramd.stub.GetBasis(vram_pb2.GetBasisRequest())
            assert (answer.basis.basis_mib, answer.basis.source) == (24576, vram_pb2.SOURCE_OVERRIDE)

    asyncio.run(check())


async def listed(vramd: Running, **constraints: object) -> list[vram_pb2.GpuNode]:
    request = vram_pb2.ListGpuNodesRequest(constraints=constraints)
    return [node async for page in vramd.stub.ListGpuNodes(request) for node in page.nodes]


def test_nodes_are_listed_by_name_with_what_they_say() -> None:
    async def check() -> None:
        async with running() as vramd:
            with pytest.raises(grpc.aio.AioRpcError, match="not read yet"):
                await listed(vramd)
            product = {"nvidia.com/gpu.product": "Tesla-T4", "pool": "x"}
            vramd.store.replace(
                [
                    GpuNode("c", product, Memory(15360), NEW),
                    node("b", NoMemory("no label")),
                    node("a", NoShare("cut")),
                ]
            )
            nodes = await listed(vramd)
            assert [(n.name, n.WhichOneof("memory")) for n in nodes] == [
                ("a", "takes_no_share"),
                ("b", "unknown"),
                ("c", "memory_mib"),
            ]
            t4 = nodes[2]
            assert (t4.memory_mib, t4.origin, t4.product) == (15360, vram_pb2.MEMORY_ORIGIN_LABEL, "Tesla-T4")
            assert (t4.kubelet_version, t4.container_runtime_version) == ("v1.36.1", "containerd://2.2.0")
            assert [n.name for n in await listed(vramd, node_selector={"pool": "x"})] == ["c"]

    asyncio.run(check())


def test_many_nodes_come_in_several_messages() -> None:
    async def check() -> None:
        async with running() as vramd:
            names = [f"n{number:04}" for number in range(2 * NODES_A_MESSAGE + 1)]
            vramd.store.replace(node(name, 100) for name in reversed(names))
            assert [n.name for n in await listed(vramd)] == names

    asyncio.run(check())


def affinity(*requirements: vram_pb2.NodeSelectorRequirement) -> vram_pb2.GetBasisRequest:
    term = vram_pb2.NodeSelectorTerm(match_expressions=requirements)
    return vram_pb2.GetBasisRequest(required_node_affinity=vram_pb2.RequiredNodeAffinity(terms=[term]))


def values(count: int) -> vram_pb2.GetBasisRequest:
    names = [f"v{number}" for number in range(count)]
    return affinity(vram_pb2.NodeSelectorRequirement(key="pool", operator="In", values=names))


def comparisons(count: int) -> vram_pb2.GetBasisRequest:
    one = vram_pb2.NodeSelectorRequirement(key="gen", operator="Gt", values=["1"])
    other = vram_pb2.NodeSelectorRequirement(key="gen", operator="Lt", values=["9"])
    return affinity(one, *[other] * (count - 1))


def empty_terms(count: int) -> vram_pb2.GetBasisRequest:
    terms = [vram_pb2.NodeSelectorTerm()] * count
    return vram_pb2.GetBasisRequest(required_node_affinity=vram_pb2.RequiredNodeAffinity(terms=terms))


@pytest.mark.parametrize(
    ("make", "most"),
    [(values, MOST_VALUES), (comparisons, MOST_COMPARISONS), (empty_terms, MOST_REQUIREMENTS)],
)
def test_what_would_hold_up_everyone_is_refused(make: Callable[[int], vram_pb2.GetBasisRequest], most: int) -> None:
    async def check() -> None:
        async with running() as vramd:
            vramd.store.replace([node("a", 100)])
            assert (await vramd.stub.GetBasis(make(most))).unknown.cause == vram_pb2.CAUSE_NONE_ELIGIBLE
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await vramd.stub.GetBasis(make(most + 1))
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"at most {most} " in str(error.value.details())

    asyncio.run(check())


def test_more_requirements_than_allowed_are_refused() -> None:
    async def check() -> None:
        async with running() as vramd:
            vramd.store.replace([])
            selector = {f"k{number}": "v" for number in range(MOST_REQUIREMENTS)}
            request = vram_pb2.GetBasisRequest(node_selector=selector)
            assert (await vramd.stub.GetBasis(request)).unknown.cause == vram_pb2.CAUSE_NO_GPU_NODE
            request.required_node_affinity.terms.add().match_fields.add(key="metadata.name")
            for call in (
                lambda: vramd.stub.GetBasis(request),
                lambda: after(vramd.stub.WatchBasis(vram_pb2.WatchBasisRequest(constraints=request))),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call()
                assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert str(MOST_REQUIREMENTS) in str(error.value.details())

    asyncio.run(check())
