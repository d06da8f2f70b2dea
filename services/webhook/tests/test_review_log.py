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
from isolator_webhook.review_log import PAUSE_SECONDS, ReviewLog

LINES = 50


class Slow(io.StringIO):
    """A file on which whoever does not write a line at once is overtaken."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0.001)
        return written


class Full(io.StringIO):
    """A file that cannot be written to once."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            self.full = False
            raise OSError("no space left on device")
        return super().write(text)


def test_lines_that_cannot_be_written_hold_up_no_others(world: Any) -> None:
    request = review.decode(json.dumps(world.review_of(world.a_pod({"gpu-memory": "1"}))).encode()).request
    file = Full()

    async def reviews() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
        log = ReviewLog(file)
        for reason in ("lost", "kept"):
            log.tell(Answered(b"", request, Outcome("denied", reason, "no")))
            await asyncio.sleep(10 * PAUSE_SECONDS)

    failures: list[BaseException] = []
    asyncio.run(reviews())
    assert [str(failure) for failure in failures] == ["no space left on device"]
    assert [json.loads(line)["reason"] for line in file.getvalue().splitlines()] == ["kept"]


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
