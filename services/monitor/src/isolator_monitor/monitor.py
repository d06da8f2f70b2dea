"""Take snapshots, render each once, and hand out what was rendered last."""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from isolator_monitor import http_server, metrics
from isolator_monitor.http_server import Answer
from isolator_monitor.snapshot import Snapshot

_log = structlog.get_logger()


@dataclass(frozen=True)
class Rendered:
    """A snapshot as bytes."""

    plain: bytes
    openmetrics: bytes


class Monitor:
    """The last snapshot, rendered."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._rendered: Rendered | None = None

    def update(self) -> None:
        """Take a snapshot and render it."""
        snapshot = self._take()
        self._rendered = Rendered(metrics.render(snapshot), metrics.render_openmetrics(snapshot))

    def answer(self, path: str, accept: str) -> Answer:
        """Answer a GET."""
        rendered = self._rendered
        if path == "/healthz":
            return http_server.text(200, "ok")
        if path in ("/metrics", "/readyz"):
            if rendered is None:
                return http_server.text(503, "no snapshot has been taken yet")
            if path == "/metrics":
                return http_server.metrics_answer(accept, rendered.plain, rendered.openmetrics)
            return http_server.text(200, "ok")
        return http_server.text(404, "there is /metrics, /healthz and /readyz")


def serve(monitor: Monitor, address: str, port: int, interval_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    monitor.update()
    with http_server.make_server(address, port, monitor.answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _log.info("listening", address=address, port=server.server_address[1])
        while not stop.wait(interval_seconds):
            monitor.update()
        server.shutdown()
    _log.info("stopped")
