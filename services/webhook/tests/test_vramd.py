"""The question to vramd, and what becomes of its answers, its silence and its absence."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import msgspec
import pytest

from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_webhook.basis import Basis, Known, Unknown, Vramd, question
from isolator_webhook.pod import PodSpec

Answer = Callable[[vram_pb2.GetBasisRequest], Awaitable[vram_pb2.GetBasisResponse]]


class Servicer(vram_pb2_grpc.VramServicer):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def GetBasis(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        return await self.answer(request)


@contextlib.asynccontextmanager
async def vramd(answer: Answer) -> AsyncIterator[str]:
    server = grpc.aio.server()
    vram_pb2_grpc.add_VramServicer_to_server(Servicer(answer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def ask(answer: Answer, spec: Any = None, deadline: float = 5) -> Basis:
    async def run() -> Basis:
        async with vramd(answer) as address, Vramd(address, deadline) as client:
            return await client.ask(msgspec.convert(spec or {"containers": []}, PodSpec))

    return asyncio.run(run())


def says(response: vram_pb2.GetBasisResponse) -> Answer:
    async def answer(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        return response

    return answer


def test_known() -> None:
    basis = vram_pb2.Basis(basis_mib=15360, source=vram_pb2.SOURCE_NODES, nodes=3)
    assert ask(says(vram_pb2.GetBasisResponse(basis=basis))) == Known(15360, 15360)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (vram_pb2.GetBasisResponse(unknown=vram_pb2.Unknown(reason="no GPU node")), "no GPU node"),
        (vram_pb2.GetBasisResponse(), "empty answer"),
        (vram_pb2.GetBasisResponse(basis=vram_pb2.Basis()), "empty answer"),
    ],
)
def test_unknown(response: vram_pb2.GetBasisResponse, words: str) -> None:
    found = ask(says(response))
    assert isinstance(found, Unknown)
    assert words in found.reason


def test_failing() -> None:
    async def answer(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        raise RuntimeError

    found = ask(answer)
    assert isinstance(found, Unknown)
    assert "UNKNOWN" in found.reason


def test_hanging_costs_the_deadline() -> None:
    async def answer(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        await asyncio.sleep(60)
        return vram_pb2.GetBasisResponse()

    found = ask(answer, deadline=0.2)
    assert isinstance(found, Unknown)
    assert "DEADLINE_EXCEEDED" in found.reason


def test_absent() -> None:
    async def run() -> Basis:
        async with Vramd("127.0.0.1:1", 5) as client:
            return await client.ask(PodSpec(containers=[]))

    found = asyncio.run(run())
    assert isinstance(found, Unknown)
    assert "UNAVAILABLE" in found.reason
    assert "127.0.0.1:1" in found.reason


def test_back_again() -> None:
    async def run() -> list[type]:
        found = []
        known = says(vram_pb2.GetBasisResponse(basis=vram_pb2.Basis(basis_mib=1)))
        async with vramd(known) as address:
            port = address.rpartition(":")[2]
            client = Vramd(address, 5)
            found.append(type(await client.ask(PodSpec(containers=[]))))
        found.append(type(await client.ask(PodSpec(containers=[]))))
        server = grpc.aio.server()
        vram_pb2_grpc.add_VramServicer_to_server(Servicer(known), server)
        assert server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        async with client, asyncio.timeout(60):
            while isinstance(await client.ask(PodSpec(containers=[])), Unknown):
                await asyncio.sleep(0.1)
            found.append(Known)
        await server.stop(None)
        return found

    assert asyncio.run(run()) == [Known, Unknown, Known]


def test_question_carries_what_constrains_the_node() -> None:
    spec = msgspec.convert(
        {
            "containers": [],
            "nodeName": "n1",
            "nodeSelector": {"pool": "a100"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
                                "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}],
                            },
                            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
                        ]
                    },
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
                }
            },
        },
        PodSpec,
    )
    requirement = vram_pb2.NodeSelectorRequirement
    term = vram_pb2.NodeSelectorTerm
    assert question(spec) == vram_pb2.GetBasisRequest(
        node_selector={"pool": "a100"},
        node_name="n1",
        required_node_affinity=vram_pb2.RequiredNodeAffinity(
            terms=[
                term(
                    match_expressions=[requirement(key="zone", operator="In", values=["a", "b"])],
                    match_fields=[requirement(key="metadata.name", operator="NotIn", values=["n9"])],
                ),
                term(match_expressions=[requirement(key="gpu", operator="Exists")]),
            ]
        ),
    )


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}])
def test_no_affinity_is_no_constraint(affinity: Any) -> None:
    spec = msgspec.convert({"containers": [], "affinity": affinity}, PodSpec)
    assert not question(spec).HasField("required_node_affinity")
    empty = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert question(msgspec.convert({"containers": [], "affinity": empty}, PodSpec)).HasField("required_node_affinity")
