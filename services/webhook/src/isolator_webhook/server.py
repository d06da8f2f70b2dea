"""The listening side: uvicorn over TLS, bounded in time, and its end."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from isolator_core.errors import UserError
from isolator_webhook.app import State

IDLE_SECONDS = 120
"""Longer than the 90 seconds after which the API server's client lets go of an idle connection: who closes first must
not be we, or a review may meet a closing connection (Kubernetes: net/http Transport, IdleConnTimeout)."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds for a request to arrive whole, and to serve on after SIGTERM."""

    receive_seconds: float = 10.0
    drain_seconds: float = 5.0


class _Protocol(HttpToolsProtocol):
    """A connection that remembers since when it owes the rest of a request: uvicorn itself waits without end."""

    owing_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.owing_since = time.monotonic()

    def on_message_begin(self) -> None:
        self.owing_since = time.monotonic()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self.owing_since = None
        super().on_message_complete()


class _Server(uvicorn.Server):
    """Ends in two steps: not ready and still serving for a while, so that traffic turns away, then finishing."""

    def __init__(self, config: uvicorn.Config, state: State, bounds: Bounds) -> None:
        super().__init__(config)
        self._state = state
        self._drain_seconds = bounds.drain_seconds
        self._receive_seconds = bounds.receive_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("listening", port=self.servers[0].sockets[0].getsockname()[1])

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: end connections that owe a request for too long."""
        oldest = time.monotonic() - self._receive_seconds
        for connection in list(self.server_state.connections):
            if isinstance(connection, _Protocol) and (connection.owing_since or oldest) < oldest:
                _log.warning("connection_too_slow", seconds=self._receive_seconds)
                connection.owing_since = None
                connection.transport.abort()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT or self._state.draining or self._drain_seconds == 0:
            super().handle_exit(sig, frame)
            return
        self._state.draining = True
        _log.info("draining", seconds=self._drain_seconds)
        loop = asyncio.get_running_loop()
        loop.call_later(self._drain_seconds, super().handle_exit, sig, frame)


class _ToStructlog(logging.Handler):
    """What uvicorn has to say, as a line of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        _log.log(record.levelno, "uvicorn", message=record.getMessage(), exc_info=record.exc_info)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError where the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=host == "::")
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error}") from error


def serve(api: ASGIApp, state: State, listener: socket.socket, context: ssl.SSLContext, bounds: Bounds) -> None:
    """Serve over TLS until SIGTERM or SIGINT; then drain, finish what is at work and return.

    `context` may be given other certificates while the server runs.
    """
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [_ToStructlog()], False
    logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        api,
        loop="uvloop",
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        # Else a request that never arrives whole would keep the process from ending. uvicorn hands it on as it is.
        timeout_graceful_shutdown=bounds.receive_seconds,  # type: ignore[arg-type]
    )
    config.load()
    config.ssl = context
    server = _Server(config, state, bounds)

    def end_or_ignore(_number: int, _frame: Any) -> None:
        # uvicorn raises the signal once more when it has shut down; that must not end the process by the signal.
        if not server.started:
            sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_or_ignore)
    # What the imports left will stay: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
