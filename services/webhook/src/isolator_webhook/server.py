"""The HTTP side: FastAPI on uvicorn over TLS."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from isolator_core.errors import SettingsError, UserError
from isolator_webhook import review
from isolator_webhook.basis import AskBasis, Unknown
from isolator_webhook.options import Options, Treatment
from isolator_webhook.pod import PodSpec

_log = structlog.get_logger()

MUTATE_PATHS: dict[str, Treatment] = {
    "/mutate": "default",
    "/mutate/enforce": "enforce",
    "/mutate/exempt": "exempt",
}
"""Where pods are reviewed, a path a treatment: the configuration's namespace selectors choose among them."""

OpenSource = Callable[[], AbstractAsyncContextManager[AskBasis]]


@dataclass
class _State:
    ready: bool = False
    ask: AskBasis | None = None


def app(open_source: OpenSource, options: Options) -> FastAPI:
    """The application. `open_source` gives the source of the basis, opened in the server's own loop."""
    state = _State()

    async def first_basis(ask: AskBasis) -> None:
        basis = await ask(PodSpec(containers=[]))
        if isinstance(basis, Unknown):
            _log.warning("basis_unknown", reason=basis.reason)
        else:
            _log.info("basis_known", basis_mib=basis.mib)
        state.ready = True

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with open_source() as ask:
            state.ask = ask
            first = asyncio.create_task(first_basis(ask))
            yield
            state.ready = False
            await first

    api = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)

    def mutate_as(treatment: Treatment) -> Callable[[Request], Awaitable[Response]]:
        async def mutate(request: Request) -> Response:
            assert state.ask is not None
            try:
                answer = await review.answer(await request.body(), state.ask, options, treatment)
            except review.Malformed as malformed:
                _log.warning("malformed_review", error=str(malformed))
                return PlainTextResponse(f"{malformed}\n", status_code=400)
            return Response(answer, media_type="application/json")

        return mutate

    for path, treatment in MUTATE_PATHS.items():
        api.post(path)(mutate_as(treatment))

    @api.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @api.get("/readyz")
    async def readyz() -> Response:
        if state.ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the basis has not been asked for yet\n", status_code=503)

    return api


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("listening", port=self.servers[0].sockets[0].getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=host == "::")
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error}") from error


def serve(api: FastAPI, host: str, port: int, certificate: Path, key: Path) -> int:
    """Serve over TLS until SIGTERM or SIGINT, then finish what is at work and return 0.

    Raises UserError where the port is taken or the certificate and key cannot be used.
    """
    config = uvicorn.Config(
        api,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=str(key),
    )
    try:
        config.load()
    except OSError as error:
        raise SettingsError(f"--certificate-file {certificate} and --key-file {key} cannot be used: {error}") from error
    # uvicorn raises the signal once more when it has shut down; that must not end the process by the signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with _listen(host, port) as listener:
        _Server(config).run(sockets=[listener])
    return 0
