"""What has to come before the webhook is ready, and what happens when waiting for it fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog

from isolator_webhook import app as app_module
from isolator_webhook.app import Limits, Source, State, app
from isolator_webhook.basis import Known, always
from isolator_webhook.metrics import Metrics
from isolator_webhook.options import Options

WAIT_SECONDS = 60
Wait = Callable[[], Awaitable[None]]


async def at_once() -> None:
    pass


def fails_once() -> Wait:
    calls = iter([RuntimeError("unforeseen")])

    async def wait() -> None:
        for error in calls:
            raise error

    return wait


@contextlib.asynccontextmanager
async def started(heard: Wait, trusted: Wait) -> AsyncIterator[State]:
    """The application between the two messages of its life."""

    @contextlib.asynccontextmanager
    async def source() -> AsyncIterator[Source]:
        yield Source(always(Known(1, 1)), heard, trusted)

    state, said = State(), asyncio.Queue[Any]()
    orders = asyncio.Queue[Any]()
    api = app(source, Options(), Metrics(), Limits(), state)
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "app": api, "path": "", "state": {}}
    life = asyncio.ensure_future(api(scope, orders.get, said.put))
    orders.put_nowait({"type": "lifespan.startup"})
    assert (await said.get())["type"] == "lifespan.startup.complete"
    yield state
    orders.put_nowait({"type": "lifespan.shutdown"})
    await life


@pytest.mark.parametrize(
    ("heard", "trusted", "what"),
    [(fails_once(), at_once, app_module.VRAMD), (at_once, fails_once(), app_module.TRUST)],
)
def test_a_wait_that_fails_is_told_and_tried_again(
    heard: Wait, trusted: Wait, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "RETRY_SECONDS", 0.01)

    async def until_ready() -> None:
        async with started(heard, trusted) as state, asyncio.timeout(WAIT_SECONDS):
            while state.awaited:
                await asyncio.sleep(0.01)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(until_ready())
    (told,) = [line for line in logs if line["event"] == "not_ready"]
    assert (told["log_level"], told["waiting_for"]) == ("error", what)
    assert logs[-1]["event"] == "ready"
