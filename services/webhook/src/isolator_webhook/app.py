"""The HTTP side: which path does what, and how much of it at once."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.requests import ClientDisconnect

from isolator_webhook import review
from isolator_webhook.basis import AskBasis
from isolator_webhook.metrics import Metrics
from isolator_webhook.options import Options, Treatment

MUTATE_PATHS: dict[str, Treatment] = {
    "/mutate": "default",
    "/mutate/enforce": "enforce",
    "/mutate/exempt": "exempt",
}
"""Where pods are reviewed, a path a treatment: the configuration's namespace selectors choose among them."""

READY_SECONDS = 10.0
"""So long the server waits for the first word of vramd before it takes reviews without."""

CLOSE = {"Connection": "close"}

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may take."""

    body_bytes: int = 7 << 20
    at_work: int = 256
    wait_seconds: float = 5.0


@dataclass(slots=True)
class Source:
    """Where the basis comes from, opened: `heard` ends once it, or its absence, is known."""

    ask: AskBasis
    heard: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class State:
    """What the probes and the connections go by."""

    ready: bool = False
    draining: bool = False


OpenSource = Callable[[], AbstractAsyncContextManager[Source]]


class _Rejected(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


async def _body(request: Request, limits: Limits) -> bytes:
    too_large = _Rejected(413, "too_large", f"the body is too large: accepted are {limits.body_bytes} bytes")
    parts = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limits.body_bytes:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise _Rejected(400, "gone", "the client is gone") from None
    return b"".join(parts)


class _Reviews:
    """Answers reviews, a bounded number at once."""

    def __init__(self, options: Options, metrics: Metrics, limits: Limits) -> None:
        self._options = options
        self._metrics = metrics
        self._limits = limits
        self._places = asyncio.Semaphore(limits.at_work)
        self.ask: AskBasis | None = None
        # Bound once: to bind anew takes longer than to write the line.
        self._log = structlog.get_logger().bind()

    async def answer(self, request: Request, treatment: Treatment) -> bytes:
        """The answer to one review. Raises _Rejected for what is none, or too much."""
        assert self.ask is not None
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self._metrics.at_work.inc()
        try:
            body = await _body(request, self._limits)
            start = time.perf_counter()
            answered = await review.answer(body, self.ask, self._options, treatment)
        except review.Malformed as malformed:
            raise _Rejected(400, "malformed", str(malformed)) from malformed
        finally:
            self._places.release()
            self._metrics.at_work.dec()
        self._metrics.seconds.observe(time.perf_counter() - start)
        self._metrics.reviewed(answered.outcome.result, answered.outcome.reason)
        self._tell(answered)
        return answered.body

    def _tell(self, answered: review.Answered) -> None:
        """One line for a pod that was patched or refused, none for others."""
        outcome, request = answered.outcome, answered.request
        if outcome.result == "allowed":
            return
        self._log.info(
            "pod_" + outcome.result,
            uid=request.uid,
            namespace=request.namespace,
            name=request.name,
            reason=outcome.reason,
            message=outcome.message,
            notices=outcome.notices,
            operations=len(outcome.operations),
        )

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise _Rejected(503, "busy", f"{self._limits.at_work} reviews are at work already") from None


def app(open_source: OpenSource, options: Options, metrics: Metrics, limits: Limits, state: State) -> FastAPI:
    """The application. `open_source` gives the source of the basis, opened in the server's own loop."""
    reviews = _Reviews(options, metrics, limits)

    async def become_ready(source: Source) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                await source.heard()
        state.ready = True
        _log.info("ready")

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with open_source() as source:
            reviews.ask = source.ask
            waiting = asyncio.create_task(become_ready(source))
            yield
            waiting.cancel()

    api = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)

    def mutate_as(treatment: Treatment) -> Callable[[Request], Awaitable[Response]]:
        async def mutate(request: Request) -> Response:
            try:
                answer = await reviews.answer(request, treatment)
            except _Rejected as rejected:
                metrics.rejected.labels(rejected.reason).inc()
                _log.warning("request_rejected", reason=rejected.reason, error=str(rejected))
                # What is left of the body would be read as the next request.
                return PlainTextResponse(f"{rejected}\n", status_code=rejected.status, headers=CLOSE)
            return Response(answer, media_type="application/json", headers=CLOSE if state.draining else None)

        return mutate

    for path, treatment in MUTATE_PATHS.items():
        # Not `api.post`: the bytes go to msgspec, and FastAPI's own reading of parameters costs more than the review.
        api.add_route(path, mutate_as(treatment), methods=["POST"])

    @api.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @api.get("/readyz")
    async def readyz() -> Response:
        if state.ready and not state.draining:
            return PlainTextResponse("ok\n")
        reason = "draining" if state.draining else "waiting for the first word of vramd"
        return PlainTextResponse(f"{reason}\n", status_code=503)

    return api
