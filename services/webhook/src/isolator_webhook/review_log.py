"""The log's lines about pods, of which there may be thousands a second.

They look like all other lines (`isolator_core.logs`), but structlog's way to one takes as long as a review does. Those
of ten milliseconds are written at once.
"""

import asyncio
import datetime
from typing import TextIO

import msgspec
import structlog

from isolator_webhook.review import Answered

PAUSE_SECONDS = 0.01


class _Line(msgspec.Struct):
    """The fields in the order in which they are written."""

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    notices: list[str]
    operations: int
    event: str
    service: str
    level: str
    timestamp: datetime.datetime


class ReviewLog:
    """Writes a line for a pod that was changed or refused, or in which the guard found something; none for others.

    None either for a second look at a pod, which finds nothing left to change.
    """

    def __init__(self, file: TextIO) -> None:
        # Under structlog's own lock for the file, since lines of other threads come in between.
        self._out = structlog.PrintLogger(file)
        self._service = structlog.contextvars.get_contextvars().get("service", "")
        self._enabled = structlog.get_logger().bind().is_enabled_for(20)
        self._lines: list[bytes] = []

    def tell(self, answered: Answered) -> None:
        """Keep the line for a review until it is written."""
        outcome, request = answered.outcome, answered.request
        as_it_came = outcome.result in ("allowed", "patched") and not outcome.operations
        if not self._enabled or (as_it_came and not outcome.findings):
            return
        line = _Line(
            request.uid, request.namespace, request.name, outcome.reason, outcome.message, outcome.notices,
            len(outcome.operations), f"pod_{outcome.result}", self._service, "info",
            datetime.datetime.now(datetime.UTC),
        )  # fmt: skip
        if not self._lines:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.write_out)
        self._lines.append(msgspec.json.encode(line))

    def write_out(self) -> None:
        """Write what is kept."""
        # Taken first: lines that cannot be written must not keep those that come from being so.
        lines, self._lines = self._lines, []
        if lines:
            self._out.msg(b"\n".join(lines).decode())
