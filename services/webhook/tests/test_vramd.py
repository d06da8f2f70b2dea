"""The question to vramd, and what becomes of its answers, its silence and its absence."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import structlog

from isolator_core.errors import SettingsError
from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_testing.certificates import Authority
from isolator_webhook.basis import Basis, Known, NodeSoftware, Unknown
from isolator_webhook.pod import PodSpec
from isolator_webhook.vramd import ClientTls, Vramd, question

Answer = Callable[[vram_pb2.GetBasisRequest], Awaitable[vram_pb2.GetBasisResponse]]
WAIT_SECONDS = 60
PINNED = {"containers": [], "nodeSelector": {"pool": "a100"}}
FREE: dict[str, Any] = {"containers": []}


RUN = NodeSoftware("v1.36.1", "containerd://2.2.0", 3, "a")
WITH_SOFTWARE = vram_pb2.WatchBasisRequest(constraints=vram_pb2.GetBasisRequest(with_software=True))
NODES = vram_pb2.NodeSoftware(
    kubelet_version="v1.36.1", container_runtime_version="containerd://2.2.0", nodes=3, example="a"
)


class Servicer(vram_pb2_grpc.VramServicer):
    """Answers questions by a function, and streams what is put into a queue."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.stream: asyncio.Queue[vram_pb2.GetBasisResponse] = asyncio.Queue()

    async def GetBasis(self, request: Any, context: Any) -> Any:  # noqa: N802
        if "refused" in request.node_selector:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too many requirements")
        return await self.answer(request)

    async def WatchBasis(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert request in (vram_pb2.WatchBasisRequest(), WITH_SOFTWARE)
        while not context.cancelled():
            yield await self.stream.get()


def basis_of(mib: int, *more: int) -> vram_pb2.GetBasisResponse:
    distribution = [vram_pb2.MemoryCount(memory_mib=one, nodes=1) for one in (mib, *more)]
    return vram_pb2.GetBasisResponse(basis=vram_pb2.Basis(basis_mib=mib, distribution=distribution))


def unknown_for(reason: str) -> vram_pb2.GetBasisResponse:
    return vram_pb2.GetBasisResponse(unknown=vram_pb2.Unknown(reason=reason))


def says(response: vram_pb2.GetBasisResponse) -> Answer:
    async def answer(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        return response

    return answer


@contextlib.asynccontextmanager
async def vramd(
    servicer: Servicer, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    server = grpc.aio.server()
    vram_pb2_grpc.add_VramServicer_to_server(servicer, server)
    address = f"127.0.0.1:{port}"
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    assert port
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def spec_of(spec: Any) -> PodSpec:
    return msgspec.convert(spec, PodSpec)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def ask(answer: Answer, spec: Any = PINNED, deadline: float = 5) -> Basis:
    async def run() -> Basis:
        async with vramd(Servicer(answer)) as port, Vramd(f"127.0.0.1:{port}", deadline) as client:
            return await client.ask(spec_of(spec))

    return asyncio.run(run())


def test_known() -> None:
    assert ask(says(basis_of(15360))) == Known(15360, 15360)
    assert ask(says(basis_of(15360, 40960, 81559))) == Known(15360, 81559)
    override = vram_pb2.Basis(basis_mib=7, source=vram_pb2.SOURCE_OVERRIDE)
    assert ask(says(vram_pb2.GetBasisResponse(basis=override))) == Known(7, 7)


def test_what_the_nodes_run_is_asked_for_where_it_is_wanted() -> None:
    asked: list[bool] = []

    async def answer(request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        asked.append(request.with_software)
        return vram_pb2.GetBasisResponse(basis=vram_pb2.Basis(basis_mib=7), software=[NODES])

    async def check() -> None:
        servicer = Servicer(answer)
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 5, with_software=True) as client:
            servicer.stream.put_nowait(
                vram_pb2.GetBasisResponse(unknown=vram_pb2.Unknown(reason="silent"), software=[NODES])
            )
            await client.heard()
            assert client.cluster == Unknown("silent", (RUN,))
            assert await client.ask(spec_of(PINNED)) == Known(7, 7, (RUN,))

    asyncio.run(check())
    assert ask(answer) == Known(7, 7, (RUN,))
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (unknown_for("no GPU node"), "no GPU node"),
        (vram_pb2.GetBasisResponse(), "empty answer"),
        (vram_pb2.GetBasisResponse(basis=vram_pb2.Basis()), "empty answer"),
    ],
)
def test_unknown(response: vram_pb2.GetBasisResponse, words: str) -> None:
    found = ask(says(response))
    assert isinstance(found, Unknown)
    assert words in found.reason


def test_unreadable() -> None:
    """Another program at that address, or a vramd of another time."""

    async def once(_request: bytes, _context: Any) -> bytes:
        return b"\xff\xff"

    async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"\xff\xff"
        await asyncio.sleep(WAIT_SECONDS)

    async def run() -> list[Basis]:
        server = grpc.aio.server()
        handlers = {
            "GetBasis": grpc.unary_unary_rpc_method_handler(once),
            "WatchBasis": grpc.unary_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("isolator.vram.v1.Vram", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with Vramd(f"127.0.0.1:{port}", 5) as client, asyncio.timeout(WAIT_SECONDS):
            await client.heard()
            found = [await client.ask(spec_of(spec)) for spec in (FREE, PINNED)]
        await server.stop(None)
        return found

    for found in asyncio.run(run()):
        assert isinstance(found, Unknown)
        assert "cannot be read" in found.reason


def test_failing() -> None:
    async def answer(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
        raise RuntimeError

    found = ask(answer)
    assert isinstance(found, Unknown)
    assert "UNKNOWN" in found.reason


async def hang(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
    await asyncio.sleep(WAIT_SECONDS)
    return vram_pb2.GetBasisResponse()


def test_hanging_costs_the_deadline() -> None:
    found = ask(hang, deadline=0.2)
    assert isinstance(found, Unknown)
    assert "DEADLINE_EXCEEDED" in found.reason


def test_absent() -> None:
    async def run() -> list[Basis]:
        async with Vramd("127.0.0.1:1", 5) as client:
            await client.heard()
            return [await client.ask(spec_of(spec)) for spec in (FREE, PINNED)]

    for found in asyncio.run(run()):
        assert isinstance(found, Unknown)
        assert "UNAVAILABLE" in found.reason
        assert "127.0.0.1:1" in found.reason


def test_copy_follows_the_stream_and_answers_for_free_pods() -> None:
    async def run() -> list[Basis]:
        servicer = Servicer(says(basis_of(81559)))
        found = []
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 5) as client:
            found.append(await client.ask(spec_of(FREE)))
            servicer.stream.put_nowait(basis_of(15360, 81559))
            await client.heard()
            found.append(await client.ask(spec_of(FREE)))
            found.append(await client.ask(spec_of(PINNED)))
            assert client.age == 0
            servicer.stream.put_nowait(unknown_for("no GPU node left"))
            await until(lambda: isinstance(client.cluster, Unknown))
            found.append(await client.ask(spec_of(FREE)))
        return found

    first, second, pinned, last = asyncio.run(run())
    assert isinstance(first, Unknown)
    assert "not answered yet" in first.reason
    assert second == Known(15360, 81559)
    assert pinned == Known(81559, 81559)
    assert last == Unknown("no GPU node left")


def test_copy_stands_in_while_vramd_is_hung_or_away_and_heals_afterwards() -> None:
    async def run() -> None:
        servicer = Servicer(hang)
        servicer.stream.put_nowait(basis_of(15360))
        async with contextlib.AsyncExitStack() as life:
            port = await life.enter_async_context(vramd(servicer))
            client = Vramd(f"127.0.0.1:{port}", 0.2)
            await client.__aenter__()
            await client.heard()
            assert await client.ask(spec_of(PINNED)) == Known(15360, 15360)
        await until(lambda: client.age > 0)
        for spec in (FREE, PINNED):
            assert await client.ask(spec_of(spec)) == Known(15360, 15360)
        servicer = Servicer(says(basis_of(7)))
        servicer.stream.put_nowait(basis_of(40960))
        async with vramd(servicer, port):
            await until(lambda: client.cluster == Known(40960, 40960))
            assert client.age == 0
            assert await client.ask(spec_of(PINNED)) == Known(7, 7)
            await client.__aexit__(None, None, None)

    asyncio.run(run())


def test_a_stream_that_fails_in_an_unforeseen_way_is_told_and_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read, failing = Vramd._read, [RuntimeError("unforeseen")]

    def reading(client: Vramd, response: Any) -> Basis:
        for error in failing:
            failing.remove(error)
            raise error
        return read(client, response)

    async def run() -> None:
        servicer = Servicer(says(basis_of(7)))
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 5) as client:
            servicer.stream.put_nowait(basis_of(15360))
            await client.heard()
            assert "unforeseen" in getattr(client.cluster, "reason", "")
            for _ in range(2):
                # The stream that failed may still take one with it.
                servicer.stream.put_nowait(basis_of(40960))
            await until(lambda: client.cluster == Known(40960, 40960))

    monkeypatch.setattr(Vramd, "_read", reading)
    with structlog.testing.capture_logs() as logs:
        asyncio.run(run())
    assert "vramd_not_followed" in [line["event"] for line in logs]


def test_copy_stands_in_while_a_vramd_that_came_back_has_not_read_the_nodes() -> None:
    """Its connection is back before its readiness counts, and the API server may be away longer."""
    not_read = vram_pb2.GetBasisResponse(
        unknown=vram_pb2.Unknown(reason="the nodes were not read yet", cause=vram_pb2.CAUSE_NOT_READ)
    )

    async def run() -> None:
        servicer = Servicer(says(not_read))
        servicer.stream.put_nowait(not_read)
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 5) as client:
            await client.heard()
            for spec in (FREE, PINNED):
                assert await client.ask(spec_of(spec)) == Unknown("the nodes were not read yet")
            servicer.stream.put_nowait(basis_of(15360))
            await until(lambda: client.cluster == Known(15360, 15360))
            servicer.stream.put_nowait(not_read)
            await until(servicer.stream.empty)
            servicer.stream.put_nowait(basis_of(15360, 40960))
            seen = {client.cluster}
            while client.cluster != Known(15360, 40960):
                seen |= {await client.ask(spec_of(PINNED)), client.cluster}
            assert seen <= {Known(15360, 15360), Known(15360, 40960)}

    asyncio.run(run())


def test_one_question_at_a_time_finds_out_whether_a_hung_vramd_is_back() -> None:
    async def run() -> None:
        servicer = Servicer(hang)
        servicer.stream.put_nowait(basis_of(15360))
        asked = 0

        async def counted(_request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
            nonlocal asked
            asked += 1
            return await hang(_request)

        servicer.answer = counted
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 1) as client:
            await client.heard()
            assert await client.ask(spec_of(PINNED)) == Known(15360, 15360)
            found = await asyncio.gather(*(client.ask(spec_of(PINNED)) for _ in range(500)))
            assert set(found) == {Known(15360, 15360)}
            assert asked == 2
            servicer.answer = says(basis_of(7))
            await until_async(lambda: client.ask(spec_of(PINNED)), Known(7, 7))

    asyncio.run(run())


def test_a_question_that_vramd_refuses_is_no_trouble_of_others() -> None:
    """One pod's author must not keep vramd's answers from other pods."""
    refused = {"containers": [], "nodeSelector": {"refused": "x"}}

    async def run() -> None:
        at_work, go_on = asyncio.Event(), asyncio.Event()

        async def answer(request: vram_pb2.GetBasisRequest) -> vram_pb2.GetBasisResponse:
            if "slow" in request.node_selector:
                at_work.set()
                await go_on.wait()
            return basis_of(7)

        servicer = Servicer(answer)
        servicer.stream.put_nowait(basis_of(15360))
        async with vramd(servicer) as port, Vramd(f"127.0.0.1:{port}", 5) as client:
            await client.heard()
            assert await client.ask(spec_of(refused)) == Known(15360, 15360)
            slow = asyncio.create_task(client.ask(spec_of({"containers": [], "nodeSelector": {"slow": "x"}})))
            await at_work.wait()
            assert await client.ask(spec_of(PINNED)) == Known(7, 7)
            go_on.set()
            assert await slow == Known(7, 7)

    asyncio.run(run())


async def until_async(call: Callable[[], Awaitable[Basis]], expected: Basis) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await call() != expected:
            await asyncio.sleep(0.01)


def test_questions_go_to_every_replica() -> None:
    async def run() -> set[Basis]:
        async with vramd(Servicer(says(basis_of(1)))) as one, vramd(Servicer(says(basis_of(2)))) as two:
            target = f"ipv4:127.0.0.1:{one},127.0.0.1:{two}"
            async with Vramd(target, 5) as client, asyncio.timeout(WAIT_SECONDS):
                found: set[Basis] = set()
                while len(found) < 2:
                    found.add(await client.ask(spec_of(PINNED)))
                return found

    assert asyncio.run(run()) == {Known(1, 1), Known(2, 2)}


@pytest.mark.parametrize(
    ("client", "answered"), [("mutual", True), ("stranger", False), ("none", False), ("plain", False)]
)
def test_mutual_tls(tmp_path: Path, client: str, answered: bool) -> None:
    ca, server = Authority(), tmp_path / "ca.crt"
    ca.write(tmp_path)
    issued = ca.issue()
    credentials = grpc.ssl_server_credentials(
        [(issued.key, issued.certificate)], ca.certificate, require_client_auth=True
    )

    def shown(by: Authority) -> ClientTls:
        pair = by.issue().write(tmp_path, "client")
        return ClientTls(server, pair.certificate, pair.key)

    tls = {
        "mutual": lambda: shown(ca),
        "stranger": lambda: shown(Authority()),
        "none": lambda: ClientTls(server),
        "plain": lambda: None,
    }[client]()

    async def run() -> Basis:
        servicer = Servicer(says(basis_of(7)))
        async with vramd(servicer, credentials=credentials) as port, Vramd(f"localhost:{port}", 5, tls) as connection:
            return await connection.ask(spec_of(PINNED))

    assert isinstance(asyncio.run(run()), Known) is answered


def test_renewed_credentials_are_read_after_a_failure(tmp_path: Path) -> None:
    ca = Authority()
    authority = Authority().write(tmp_path)
    issued = ca.issue()
    credentials = grpc.ssl_server_credentials([(issued.key, issued.certificate)])

    async def run() -> None:
        servicer = Servicer(says(basis_of(7)))
        tls = ClientTls(authority)
        async with vramd(servicer, credentials=credentials) as port, Vramd(f"localhost:{port}", 5, tls) as client:
            assert isinstance(await client.ask(spec_of(PINNED)), Unknown)
            ca.write(tmp_path)
            await until_async(lambda: client.ask(spec_of(PINNED)), Known(7, 7))

    asyncio.run(run())


def test_missing_files_for_tls(tmp_path: Path) -> None:
    async def run() -> None:
        Vramd("localhost:1", 5, ClientTls(tmp_path / "none"))

    with pytest.raises(SettingsError, match="none"):
        asyncio.run(run())


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
