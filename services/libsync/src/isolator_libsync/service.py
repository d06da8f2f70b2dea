"""`isolator-libsync run`: keep the node right until told to end."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from isolator_core.http_server import Answer, make_server, text
from isolator_core.names import LIBSYNC_METRICS_PORT
from isolator_libsync import node_mark
from isolator_libsync.findings import Finding
from isolator_libsync.keeper import Keeper
from isolator_libsync.metrics import Metrics
from isolator_libsync.settings import NodeSettings, wanted
from isolator_libsync.watch import Watch

log = structlog.get_logger()

PAUSE_SECONDS = 0.1
PAUSE_AFTER_REPAIR_SECONDS = 0.5
"""The least time from one pass to the next, so that a stream of changes cannot keep a core busy."""

_NEVER_SECONDS = 1e6


class RunSettings(NodeSettings, node_mark.MarkSettings):
    """Settings of `run`."""

    poll_seconds: float = Field(
        4.0, ge=0.1, le=3600, description="seconds after which the node is looked at although nothing was told"
    )
    listen_address: str = Field(
        "0.0.0.0", description="address of /metrics, /readyz and /healthz; :: for IPv6 and IPv4"
    )
    listen_port: int = Field(LIBSYNC_METRICS_PORT, ge=0, le=65535, description="their port, 0 for a free one")


class Status:
    """What the probes say: of the last pass, and whether passes still happen."""

    def __init__(self, poll_seconds: float) -> None:
        self._findings: Sequence[Finding] | None = None
        self._passed = time.monotonic()
        self._patience_seconds = 3 * poll_seconds + 30

    def passed(self, findings: Sequence[Finding]) -> None:
        self._findings, self._passed = findings, time.monotonic()

    def alive(self) -> Answer:
        late = time.monotonic() - self._passed
        if late > self._patience_seconds:
            return text(503, f"the node was last looked at {late:.0f} seconds ago")
        return text(200, "ok")

    def ready(self) -> Answer:
        alive = self.alive()
        if alive[0] != 200:
            return alive
        if self._findings is None:
            return text(503, "the node has not been looked at yet")
        if self._findings:
            return text(503, "\n".join(map(str, self._findings)))
        return text(200, "ok")


def run(settings: RunSettings) -> int:
    """Keep the node right until SIGTERM or SIGINT."""
    node = wanted(settings)
    metrics = Metrics(node)
    status = Status(settings.poll_seconds)
    mark = node_mark.from_settings(settings)
    marker = None if mark is None else node_mark.Marker(mark, metrics.node_updated)
    with _stop_requests() as stop, _probes(settings, metrics, status):
        keeper = Keeper(node)
        while True:
            settled = keeper.settled
            outcome = keeper.go_over()
            metrics.passed(outcome.remaining, outcome.repaired, settled=settled)
            metrics.watching.set(keeper.watch is not None)
            status.passed(outcome.remaining)
            if marker is not None:
                marker.tell(outcome.remaining)
            pause = PAUSE_AFTER_REPAIR_SECONDS if outcome.repaired else PAUSE_SECONDS
            if _readable(stop, None, pause) or stop in _readable(stop, keeper.watch, settings.poll_seconds - pause):
                break
    log.info("ended")
    return 0


def _readable(stop: int, watch: Watch | None, seconds: float) -> list[int | Watch]:
    sources: list[int | Watch] = [stop] if watch is None else [stop, watch]
    return select.select(sources, [], [], max(seconds, 0))[0]


@contextlib.contextmanager
def _probes(settings: RunSettings, metrics: Metrics, status: Status) -> Iterator[None]:
    def answer(path: str, _accept: str) -> Answer:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry)
            case "/readyz":
                return status.ready()
            case "/healthz":
                return status.alive()
        return text(404, "there is /metrics, /readyz and /healthz")

    with make_server(settings.listen_address, settings.listen_port, answer) as server:
        log.info("listening", address=settings.listen_address, port=server.server_address[1])
        # It ends with the process; looking for an earlier end would wake the node twice a second.
        threading.Thread(target=server.serve_forever, args=(_NEVER_SECONDS,), name="probes", daemon=True).start()
        yield


@contextlib.contextmanager
def _stop_requests() -> Iterator[int]:
    """A descriptor that becomes readable when SIGTERM or SIGINT asks to end."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ask(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writer, b".")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
