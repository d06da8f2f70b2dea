"""Lines about pods and lines of other threads do not mix."""

import asyncio
import io
import json
import threading
import time
from typing import Any

import structlog

from isolator_webhook import review
from isolator_webhook.review import Answered, Outcome
from isolator_webhook.review_log import ReviewLog

LINES = 50


class Slow(io.StringIO):
    """A file on which whoever does not write a line at once is overtaken."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0.001)
        return written


def test_lines_of_threads_stay_whole(world: Any) -> None:
    request = review.decode(json.dumps(world.review_of(world.a_pod({"gpu-memory": "1"}))).encode()).request
    answered = Answered(b"", request, Outcome("denied", "guard", "no"))
    file = Slow()
    other = structlog.PrintLogger(file)
    rotating = threading.Thread(target=lambda: [other.msg('{"event":"rotation"}') for _ in range(LINES)])

    async def reviews() -> None:
        log = ReviewLog(file)
        for _ in range(LINES):
            log.tell(answered)
            log.write_out()

    rotating.start()
    asyncio.run(reviews())
    rotating.join()
    found = [json.loads(line)["event"] for line in file.getvalue().splitlines()]
    assert sorted(found) == ["pod_denied"] * LINES + ["rotation"] * LINES
