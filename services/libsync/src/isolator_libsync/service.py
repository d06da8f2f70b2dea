"""`isolator-libsync run`: keep the node right until told to end."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator

import structlog
from pydantic import Field

from isolator_libsync.files import Directory
from isolator_libsync.findings import Finding, NotRight
from isolator_libsync.keep import Outcome, Wanted, make_directory, put_right, sync, take
from isolator_libsync.settings import NodeSettings, wanted

log = structlog.get_logger()


class RunSettings(NodeSettings):
    """Settings of `run`."""

    poll_seconds: float = Field(4.0, ge=0.1, le=3600, description="seconds after which the node is looked at unasked")


def run(settings: RunSettings) -> int:
    """Keep the node right until SIGTERM or SIGINT."""
    node = wanted(settings)
    with _stop_requests() as stop:
        keeper = Keeper(node)
        while True:
            keeper.pass_once()
            if select.select([stop], [], [], settings.poll_seconds)[0]:
                break
    log.info("ended")
    return 0


class Keeper:
    """Goes over the node again and again, holding its directory in between, and says what changed."""

    def __init__(self, node: Wanted) -> None:
        self.node = node
        self.remaining: list[Finding] | None = None
        self._directory: Directory | None = None
        self._synced = False

    def pass_once(self) -> Outcome:
        """Make the node right as far as possible."""
        try:
            outcome = self._put_right()
        except NotRight as error:
            outcome = Outcome([error.finding])
        for finding in outcome.repaired:
            log.warning("repaired", finding=finding.code, path=str(finding.path), found=finding.message)
        if outcome.remaining != self.remaining:
            for finding in outcome.remaining:
                log.error("not_right", finding=finding.code, path=str(finding.path), message=finding.message)
            if not outcome.remaining:
                log.info("right", directory=str(self.node.directory), library_sha256=self.node.files[0].sha256)
        self.remaining = outcome.remaining
        return outcome

    def _put_right(self) -> Outcome:
        directory = self._open()
        outcome = put_right(directory, self.node)
        if outcome.remaining or outcome.repaired:
            self._synced = False
        if not outcome.remaining and not self._synced:
            sync(directory, self.node)
            self._synced = True
        return outcome

    def _open(self) -> Directory:
        """The directory that the path leads to now, locked."""
        path = self.node.directory
        make_directory(path)
        try:
            if self._directory is not None:
                if os.path.samestat(path.stat(), os.fstat(self._directory.fd)):
                    return self._directory
                os.close(self._directory.fd)
                self._directory = None
            directory = Directory(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise NotRight(Finding("directory", path, f"cannot be opened: {error.strerror}")) from error
        try:
            take(directory)
        except NotRight:
            os.close(directory.fd)
            raise
        self._directory = directory
        return directory


@contextlib.contextmanager
def _stop_requests() -> Iterator[int]:
    """A descriptor that becomes readable when SIGTERM or SIGINT asks to end."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {
        number: signal.signal(number, lambda *_: os.write(writer, b".")) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
