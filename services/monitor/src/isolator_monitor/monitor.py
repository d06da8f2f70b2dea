"""Take views, render each once, and hand out what was rendered last."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import msgspec
import structlog

from isolator_core import http_server
from isolator_core.http_server import Answer
from isolator_monitor import metrics
from isolator_monitor.board import board
from isolator_monitor.link import LinkDown
from isolator_monitor.pods import PodsUnknown
from isolator_monitor.view import View

_log = structlog.get_logger()
RETRY_SECONDS = 1.0
FIRST_READING_SECONDS = 5.0
_END = b"# EOF\n"
PAGE = files("isolator_monitor").joinpath("page.html").read_bytes()


@dataclass(frozen=True)
class Rendered:
    """A view as bytes, and when it was taken by the monotonic clock."""

    plain: bytes
    openmetrics: bytes
    """Without the line that ends it."""
    board: bytes
    """JSON."""
    taken: float


class Monitor:
    """The last view, rendered."""

    def __init__(self, take: Callable[[], View], interval_seconds: float, *, legacy: bool) -> None:
        self._take = take
        self._interval = interval_seconds
        self._legacy = legacy
        self._rendered: Rendered | None = None
        self._started = time.monotonic()
        self._said = ""

    def update(self) -> bool:
        """Take a view and render it. What fails is logged, and what was seen last stays."""
        try:
            self._update()
        except Exception as error:
            # The same failure comes at every interval: it is said once.
            if repr(error) != self._said:
                self._said = repr(error)
                known = isinstance(error, LinkDown | PodsUnknown)
                _log.warning("node_not_read", error=str(error)) if known else _log.exception("update_failed")
            return False
        self._said = ""
        return True

    def _update(self) -> None:
        taken = time.monotonic()
        view = self._take()
        families = tuple(metrics.families(view, legacy=self._legacy))
        self._rendered = Rendered(
            plain=metrics.render(families),
            openmetrics=metrics.render_openmetrics(families).removesuffix(_END),
            board=msgspec.json.encode(board(view, self._interval)),
            taken=taken,
        )

    def run(self, stop: threading.Event, tried: threading.Event) -> None:
        """Update now and at every interval until told to stop; sooner after a failure. `tried` is set after the
        first."""
        while True:
            updated = self.update()
            tried.set()
            if stop.wait(self._interval if updated else min(self._interval, RETRY_SECONDS)):
                return

    def answer(self, path: str, accept: str) -> Answer:
        """Answer a GET."""
        rendered = self._rendered
        if path == "/healthz":
            return http_server.text(200, "ok")
        if path == "/":
            return 200, "text/html; charset=utf-8", PAGE
        if path not in ("/metrics", "/readyz", "/board.json"):
            return http_server.text(404, "there is /, /metrics, /board.json, /healthz and /readyz")
        age = time.monotonic() - (rendered.taken if rendered else self._started)
        stale = age > 3 * self._interval + 10
        if rendered is None and path == "/metrics" and stale:
            # An alert needs a series: one that never read the node must not be the one of which nothing is heard.
            rendered = Rendered(b"", b"", b"", self._started)
        if rendered is None:
            return http_server.text(503, "the node has not been read yet")
        if path == "/readyz":
            return (
                http_server.text(503, f"the last reading is {age:.0f} s old") if stale else http_server.text(200, "ok")
            )
        if path == "/board.json":
            head = b'{"age":%.3f,"stale":%s,"board":' % (age, b"true" if stale else b"false")
            return 200, "application/json", head + rendered.board + b"}"
        fresh = tuple(metrics.freshness(age, stale=stale))
        if metrics.prefers_openmetrics(accept):
            return metrics.openmetrics_answer(rendered.openmetrics + metrics.render_openmetrics(fresh))
        return metrics.plain_answer(rendered.plain + metrics.render(fresh))


def serve(monitor: Monitor, address: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, which do not wait for an update that is under way."""
    stop, tried = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        stop.set()
        tried.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with http_server.make_server(address, port, monitor.answer) as server:
        threading.Thread(target=monitor.run, args=(stop, tried), name="updates", daemon=True).start()
        # Whoever reads the log and then scrapes finds metrics; a reader that hangs does not keep the probes waiting.
        tried.wait(FIRST_READING_SECONDS)
        threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
        _log.info("listening", address=address, port=server.server_address[1])
        stop.wait()
        server.shutdown()
    _log.info("stopped")
