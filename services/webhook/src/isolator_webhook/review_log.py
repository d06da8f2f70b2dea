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


class ReviewLog:
    """Writes a line for a pod that was changed or refused, or in which the guard found something; none for others.

    None either for a second look at a pod, which finds nothing left to change.
    """

    def __init__(self, file: TextIO) -> None:
        # Under structlog's own lock for the file, since lines of other threads come in between.
        self._out = structlog.PrintLogger(file)
        self._service = structlog.contextvars.get_contextvars().get("service", "")
        self._enabled = structlog.get_logger().bind().is_enabled_for(20)
        self._lines: list[str] = []

    def tell(self, answered: Answered) -> None:
        """Keep the line for a review until it is written."""
        outcome, request = answered.outcome, answered.request
        as_it_came = outcome.result in ("allowed", "patched") and not outcome.operations
        if not self._enabled or (as_it_came and not outcome.findings):
            return
        line = {
            "uid": request.uid,
            "namespace": request.namespace,
            "name": request.name,
            "reason": outcome.reason,
            "message": outcome.message,
            "notices": outcome.notices,
            "operations": len(outcome.operations),
            "event": "pod_" + outcome.result,
            "service": self._service,
            "level": "info",
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat()[:-6] + "Z",
        }
        if not self._lines:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.write_out)
        self._lines.append(msgspec.json.encode(line).decode())

    def write_out(self) -> None:
        """Write what is kept."""
        if self._lines:
            self._out.msg("\n".join(self._lines))
            self._lines.clear()
