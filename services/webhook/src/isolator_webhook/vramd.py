"""The client of vramd: a streamed copy of the cluster's basis, and questions about pods that constrain their node."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import grpc
import structlog

from isolator_core.errors import SettingsError
from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_webhook.basis import Basis, Known, NodeSoftware, Unknown
from isolator_webhook.pod import PodSpec, SelectorRequirement

QUESTION_PART = 0.85
"""Of the deadline, for a question to vramd. The rest is for what follows where many run out of time at once."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
_OPTIONS = (
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files: the authority of vramd's certificate, and for mutual TLS the webhook's own pair."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files. Raises SettingsError where one cannot be read."""
        try:
            return grpc.ssl_channel_credentials(
                self.authority.read_bytes(),
                None if self.key is None else self.key.read_bytes(),
                None if self.certificate is None else self.certificate.read_bytes(),
            )
        except OSError as error:
            raise SettingsError(f"a file for TLS to vramd cannot be read: {error}") from error


def _requirements(found: Iterable[SelectorRequirement] | None) -> list[vram_pb2.NodeSelectorRequirement]:
    return [
        vram_pb2.NodeSelectorRequirement(key=one.key, operator=one.operator, values=one.values or ())
        for one in found or ()
    ]


def question(spec: PodSpec, *, with_software: bool = False) -> vram_pb2.GetBasisRequest:
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
        node_selector=spec.node_selector or {},
        required_node_affinity=affinity,
        node_name=spec.node_name,
        with_software=with_software,
    )


def known(basis: vram_pb2.Basis, software: tuple[NodeSoftware, ...] = ()) -> Known:
    """vramd's basis; its distribution goes from the smallest GPU to the largest."""
    largest = basis.distribution[-1].memory_mib if basis.distribution else basis.basis_mib
    return Known(basis.basis_mib, largest, software)


def _software(response: vram_pb2.GetBasisResponse) -> tuple[NodeSoftware, ...]:
    return tuple(
        NodeSoftware(one.kubelet_version, one.container_runtime_version, one.nodes, one.example)
        for one in response.software
    )


def _not_read(response: vram_pb2.GetBasisResponse | None) -> bool:
    """Whether vramd has just started and knows nothing yet: what was known stands in, as in its absence."""
    return response is not None and response.unknown.cause == vram_pb2.CAUSE_NOT_READ


def _constrained(spec: PodSpec) -> bool:
    return bool(spec.node_selector or spec.node_name or spec.required_node_affinity is not None)


class Vramd:
    """Asks vramd over gRPC. Whatever goes wrong there is an answer, within the deadline in seconds.

    The cluster's basis comes from a stream, and what it last said is kept while vramd is away. `with_software` has
    vramd also tell what the nodes run.
    """

    def __init__(
        self, address: str, deadline: float, tls: ClientTls | None = None, *, with_software: bool = False
    ) -> None:
        self._address = address
        self._deadline = deadline
        self._tls = tls
        self._with_software = with_software
        self._cluster: Basis | None = None
        self._heard = asyncio.Event()
        self._trouble: Unknown | None = None
        self._probing = False
        self._lost_at: float | None = time.monotonic()
        self._connect()

    def _connect(self) -> None:
        if self._tls is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(self._address, self._tls.credentials(), options=_OPTIONS)
        self._stub = vram_pb2_grpc.VramStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> "Vramd":
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher
        await self._channel.close()

    @property
    def cluster(self) -> Basis:
        """The basis of the whole cluster, as last heard."""
        return self._cluster or Unknown(f"vramd at {self._address} has not answered yet")

    @property
    def age(self) -> float:
        """Seconds for which the copy of the cluster's basis may have been out of date: 0 while a stream tells of it."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    async def heard(self) -> None:
        """Wait until the basis, or its absence, is known."""
        await self._heard.wait()

    def _read(self, response: vram_pb2.GetBasisResponse | None) -> Basis:
        # gRPC hands over None for what is no such message, and says so in a log of its own.
        if response is None:
            return Unknown(f"vramd at {self._address} gave an answer that cannot be read")
        if response.WhichOneof("answer") == "basis" and response.basis.basis_mib > 0:
            return known(response.basis, _software(response))
        reason = response.unknown.reason or f"vramd at {self._address} gave an empty answer"
        return Unknown(reason, _software(response))

    def _failure(self, error: grpc.aio.AioRpcError) -> Unknown:
        return Unknown(f"vramd at {self._address} did not answer: {error.code().name}: {error.details()}")

    async def _follow(self) -> None:
        """Follow one stream to its end, which is a failure of vramd or of the way to it."""
        every_node = vram_pb2.GetBasisRequest(with_software=True) if self._with_software else None
        stream = self._stub.WatchBasis(vram_pb2.WatchBasisRequest(constraints=every_node))
        try:
            async for response in stream:
                basis = self._read(response)
                if _not_read(response) and isinstance(self._cluster, Known):
                    continue
                if basis != self._cluster:
                    _log.info("basis", basis_mib=getattr(basis, "mib", None), reason=getattr(basis, "reason", None))
                self._cluster, self._lost_at = basis, None
                self._heard.set()
        finally:
            stream.cancel()

    async def _watch(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            failure = Unknown(f"vramd at {self._address} ended its stream")
            try:
                await self._follow()
            except grpc.aio.AioRpcError as error:
                failure = self._failure(error)
            except Exception as error:
                # Of any kind: were this the end, the copy would pass for what vramd says for ever.
                failure = Unknown(f"vramd at {self._address} could not be followed: {error}")
                _log.exception("vramd_not_followed")
            if self._lost_at is None:
                self._lost_at, pause = time.monotonic(), FIRST_PAUSE_SECONDS
                _log.warning("vramd_lost", reason=failure.reason)
            if not isinstance(self._cluster, Known):
                self._cluster = failure
            self._heard.set()
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            await self._renew_credentials()

    async def _renew_credentials(self) -> None:
        """A channel keeps the files that it was made with: after a failure they are read again."""
        if self._tls is None:
            return
        former = self._channel
        try:
            self._connect()
        except SettingsError as error:
            _log.warning("vramd_tls_unreadable", error=str(error))
            return
        await former.close(self._deadline)

    async def ask(self, spec: PodSpec) -> Basis:
        """The basis for a pod: the copy where nothing constrains its node, otherwise vramd's answer or that copy.

        After a failure one question at a time finds out whether vramd is back, and the others take the copy at once:
        were all to wait for the deadline, more would come in than go out.
        """
        if not _constrained(spec):
            return self.cluster
        if self._trouble is not None and self._probing:
            return self._instead(self._trouble)
        self._probing = True
        try:
            asked = question(spec, with_software=self._with_software)
            response = await self._stub.GetBasis(asked, timeout=self._deadline * QUESTION_PART)
            found = self._read(response)
        except grpc.aio.AioRpcError as error:
            failure = self._failure(error)
            # A question that is refused (what a pod's author wrote is too much) was answered: vramd is there.
            self._trouble = None if error.code() is grpc.StatusCode.INVALID_ARGUMENT else failure
            return self._instead(failure)
        finally:
            self._probing = False
        self._trouble = None
        return self._instead(found) if _not_read(response) else found

    def _instead(self, failure: Basis) -> Basis:
        cluster = self.cluster
        return cluster if isinstance(cluster, Known) else failure
