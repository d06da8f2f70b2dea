"""Goes over the node again and again, holding its directory in between, and logs what changed."""

import os

import structlog

from isolator_core.errors import UserError
from isolator_libsync import mounts
from isolator_libsync.files import Directory
from isolator_libsync.findings import Finding, NotRight, cannot_read
from isolator_libsync.keep import Outcome, Wanted, make_directory, put_right, sync, take
from isolator_libsync.watch import Watch

log = structlog.get_logger()


class Keeper:
    """Keeps one node. `watch` tells of changes between two passes, where the kernel can."""

    def __init__(self, node: Wanted) -> None:
        self.watch: Watch | None = None
        self._node = node
        self._directory: Directory | None = None
        self.settled = False
        """True once the node has been right: what befalls it then is damage, before it is installation."""
        self._remaining: list[Finding] | None = None
        self._synced = False
        self._said_unwatched = False
        self._mounted = self._shown()

    def go_over(self) -> Outcome:
        """Make the node right as far as possible.

        Raises UserError when the directory of the node that is mounted here is no longer the one that the node's path
        leads to: only a container started anew gets that one.
        """
        if self._shown() != self._mounted:
            raise UserError(f"{self._node.directory}: was moved or removed on the node; start this container anew")
        if self.watch is not None:
            self.watch.drain()
        try:
            outcome = self._put_right()
        except NotRight as error:
            outcome = Outcome([error.finding])
        except OSError as error:
            outcome = Outcome([cannot_read(self._node.directory, error)])
        if self.watch is not None and (outcome.repaired or outcome.remaining):
            # Told of what was just done here. A change by others meanwhile is found by the next look unasked.
            self.watch.drain()
        self._log(outcome)
        self.settled = self.settled or not outcome.remaining
        return outcome

    def _shown(self) -> str | None:
        return mounts.shown_at(self._node.directory, mounts.MOUNTINFO.read_text())

    def _put_right(self) -> Outcome:
        directory = self._open()
        outcome = put_right(directory, self._node)
        if outcome.remaining or outcome.repaired:
            self._synced = False
        if not outcome.remaining and not self._synced:
            sync(directory, self._node)
            self._synced = True
        return outcome

    def _open(self) -> Directory:
        """The directory that the path leads to now, locked and watched."""
        path = self._node.directory
        make_directory(path)
        if self._directory is not None:
            if os.path.samestat(path.stat(), os.fstat(self._directory.fd)):
                self._watch(self._directory)
                return self._directory
            self._let_go(self._directory)
        directory = Directory(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            take(directory)
        except NotRight:
            os.close(directory.fd)
            raise
        self._directory = directory
        self._watch(directory)
        return directory

    def _watch(self, directory: Directory) -> None:
        if self.watch is not None:
            return
        try:
            self.watch = Watch(directory.fd)
        except OSError as error:
            if not self._said_unwatched:
                path = str(directory.path)
                log.warning("not_watching", directory=path, error=error.strerror, consequence="changes are found late")
            self._said_unwatched = True

    def _let_go(self, directory: Directory) -> None:
        os.close(directory.fd)
        self._directory = None
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def _log(self, outcome: Outcome) -> None:
        for finding in outcome.repaired:
            say, event = (log.warning, "repaired") if self.settled else (log.info, "installed")
            say(event, finding=finding.code, path=str(finding.path), found=finding.message)
        if outcome.remaining == self._remaining:
            return
        for finding in outcome.remaining:
            log.error("not_right", finding=finding.code, path=str(finding.path), message=finding.message)
        if not outcome.remaining:
            log.info("right", directory=str(self._node.directory), library_sha256=self._node.files[0].sha256)
        self._remaining = outcome.remaining
