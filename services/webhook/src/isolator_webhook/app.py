"""The HTTP side: which path does what, and how much of it at once."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import structlog
from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from isolator_webhook import review
from isolator_webhook.basis import AskBasis
from isolator_webhook.metrics import Metrics
from isolator_webhook.options import Options, Treatment
from isolator_webhook.review_log import ReviewLog

REVIEW_PATHS: dict[str, Treatment] = {
    "/mutate": "default",
    "/mutate/enforce": "enforce",
    "/mutate/exempt": "exempt",
    "/guard": "guard",
    "/guard/enforce": "guard-enforce",
}
"""Where pods are reviewed, a path a treatment: the configuration's namespace selectors choose among them."""

READY_SECONDS = 10.0
"""So long the server waits for the first word of vramd before it takes reviews without."""

RETRY_SECONDS = 5.0
"""After these it waits anew for what failed in a way that nobody thought of."""

VRAMD = "the first word of vramd"
TRUST = "the API server to trust the certificate"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may take."""

    body_bytes: int = 7 << 20
    at_work: int = 256
    wait_seconds: float = 5.0

    @property
    def held_bytes(self) -> int:
        """Of all bodies at once: more would take what memory the container may have and end all that is served."""
        return 8 * self.body_bytes


async def _at_once() -> None:
    pass


@dataclass(slots=True)
class Source:
    """Where the basis comes from, opened: `heard` ends once it, or its absence, is known.

    `trusted` ends once the API server trusts the certificate that is served.
    """

    ask: AskBasis
    heard: Callable[[], Awaitable[None]]
    trusted: Callable[[], Awaitable[None]] = _at_once


@dataclass(slots=True)
class State:
    """What the paths and the connections go by. `awaited` is what has to come before the webhook is ready."""

    awaited: list[str] = field(default_factory=lambda: [VRAMD, TRUST])
    draining: bool = False
    ask: AskBasis | None = None


OpenSource = Callable[[], AbstractAsyncContextManager[Source]]


class _Rejected(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Reviews:
    """The ASGI application of the paths that review pods, a bounded number at once, before that of all other paths.

    It stands before FastAPI, whose reading of requests and building of responses would take longer than a review.
    """

    def __init__(self, others: ASGIApp, options: Options, metrics: Metrics, limits: Limits, state: State) -> None:
        self._others = others
        self._options = options
        self._metrics = metrics
        self._limits = limits
        self._state = state
        self._places = asyncio.Semaphore(limits.at_work)
        self._at_work = 0
        self._held_bytes = 0
        metrics.at_work.set_function(lambda: self._at_work)
        self.log = ReviewLog(sys.stderr)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        treatment = REVIEW_PATHS.get(scope["path"]) if scope["type"] == "http" else None
        if treatment is None:
            await self._others(scope, receive, send)
            return
        try:
            if scope["method"] != "POST":
                raise _Rejected(405, "method", f"{scope['method']} is not answered here: accepted is POST")
            body = await self._answer(receive, treatment)
        except _Rejected as rejected:
            self._metrics.rejected.labels(rejected.reason).inc()
            _log.warning("request_rejected", reason=rejected.reason, error=str(rejected))
            # What is left of the body would be read as the next request.
            await self._send(send, rejected.status, b"text/plain; charset=utf-8", f"{rejected}\n".encode(), close=True)
            return
        await self._send(send, 200, b"application/json", body, close=self._state.draining)

    async def _send(self, send: Send, status: int, content_type: bytes, body: bytes, *, close: bool) -> None:
        headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, receive: Receive, treatment: Treatment) -> bytes:
        ask = self._state.ask
        assert ask is not None, "the source of the basis is opened before the server takes requests"
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self._at_work += 1
        parts: list[bytes] = []
        try:
            await self._receive(receive, parts)
            body = b"".join(parts)
            start = time.perf_counter()
            answered = await review.answer(body, ask, self._options, treatment)
        except review.Malformed as malformed:
            raise _Rejected(400, "malformed", str(malformed)) from malformed
        finally:
            self._places.release()
            self._at_work -= 1
            self._held_bytes -= sum(map(len, parts))
        if answered.outcome.notices:
            self._metrics.notices.inc(len(answered.outcome.notices))
        for way in answered.outcome.findings:
            self._metrics.findings.labels(way, answered.outcome.result).inc()
        self._metrics.reviewed(answered.outcome.result, answered.outcome.reason, time.perf_counter() - start)
        self.log.tell(answered)
        return answered.body

    async def _receive(self, receive: Receive, parts: list[bytes]) -> None:
        """The whole body, in parts, which are held until it is answered."""
        limits = self._limits
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Rejected(400, "gone", "the client is gone")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._held_bytes += len(parts[-1])
            more = message.get("more_body", False)
            if size > limits.body_bytes:
                raise _Rejected(413, "too_large", f"the body is too large: accepted are {limits.body_bytes} bytes")
            if self._held_bytes > limits.held_bytes:
                raise _Rejected(503, "busy", f"bodies of {limits.held_bytes} bytes are at work already")

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise _Rejected(503, "busy", f"{self._limits.at_work} reviews are at work already") from None


def app(open_source: OpenSource, options: Options, metrics: Metrics, limits: Limits, state: State) -> ASGIApp:
    """The application. `open_source` gives the source of the basis, opened in the server's own loop."""

    async def come(what: str, wait: Callable[[], Awaitable[None]]) -> None:
        while what in state.awaited:
            try:
                await wait()
                state.awaited.remove(what)
            except Exception:
                # Of any kind: nobody else would ever say why this is never ready.
                _log.exception("not_ready", waiting_for=what)
                await asyncio.sleep(RETRY_SECONDS)

    async def become_ready(source: Source) -> None:
        async def hear() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_SECONDS):
                    await source.heard()

        await asyncio.gather(come(VRAMD, hear), come(TRUST, source.trusted))
        _log.info("ready")

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with open_source() as source:
            state.ask = source.ask
            waiting = asyncio.create_task(become_ready(source))
            yield
            waiting.cancel()
            reviews.log.write_out()

    probes = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)

    @probes.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @probes.get("/readyz")
    async def readyz() -> Response:
        if not state.awaited and not state.draining:
            return PlainTextResponse("ok\n")
        reason = "draining" if state.draining else f"waiting for {' and '.join(state.awaited)}"
        return PlainTextResponse(f"{reason}\n", status_code=503)

    reviews = Reviews(probes, options, metrics, limits, state)
    return reviews
