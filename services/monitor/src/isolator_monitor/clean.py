"""Remove what ended pods left below a region root of hostPath volumes.

Only what is provably gone: the name is a pod's UID and a container, the kubelet has no directory of that pod any more,
no process holds a lock on the region, and nothing changed in it for a while by the inode's own clock, which a tenant
cannot set back. Names are those of a directory that tenants may write, so each is taken apart by descriptors, no link
is followed, no other file system entered, and the work of a pass is bounded.
"""

import errno
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from isolator_core import names
from isolator_core.errors import UserError
from isolator_core.region import Kind, RegionError, layout_v1
from isolator_core.region.locks import held_slots
from isolator_core.region.opening import open_regular
from isolator_monitor.settings import CleanSettings

_NAME = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 64

if TYPE_CHECKING:
    ScandirIterator = os._ScandirIterator[str]

_log = structlog.get_logger()


def clean(chosen: CleanSettings) -> int:
    """Clean until SIGTERM, or once."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    cleaners = [Cleaner(root, chosen.kubelet_root, chosen.least_age, chosen.budget) for root in chosen.region_root]
    try:
        while True:
            for cleaner in cleaners:
                cleaner.clean()
            if chosen.once or stop.wait(chosen.interval):
                return 0
    finally:
        for cleaner in cleaners:
            cleaner.close()


@dataclass
class Budget:
    """How many more directory entries may be looked at or removed."""

    left: int

    def take(self) -> bool:
        """Whether there is one more."""
        self.left -= 1
        return self.left >= 0


class Cleaner:
    """Cleans one root, pass by pass. A pass goes on where the last one ran out of its budget."""

    def __init__(self, root: Path, kubelet_root: Path, least_age_seconds: float, budget: int) -> None:
        self._root = root
        self._pods = kubelet_root / "pods"
        self._least_age = least_age_seconds
        self._budget = budget
        self._unfinished = ""
        self._entries: ScandirIterator | None = None

    def clean(self) -> list[str]:
        """One pass: the names that were removed whole. Raises UserError if it cannot be told which pods are gone."""
        try:
            with os.scandir(self._pods) as pods:
                if next(pods, None) is None:
                    raise UserError(f"{self._pods} is empty: without the kubelet's directory every pod would seem gone")
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from error
        budget = Budget(self._budget)
        removed = []
        try:
            device = os.fstat(root).st_dev
            for name in self._next_names(budget):
                if not self._gone(root, name):
                    continue
                if _remove(root, name, device, budget):
                    removed.append(name)
                elif budget.left <= 0:
                    self._unfinished = name
        finally:
            os.close(root)
        if removed:
            _log.info("regions_removed", root=str(self._root), count=len(removed), first=removed[0])
        return removed

    def close(self) -> None:
        """Let go of the root."""
        if self._entries is not None:
            self._entries.close()
            self._entries = None

    def _next_names(self, budget: Budget) -> Iterator[str]:
        """Names from where the last pass ended, at most once around."""
        unfinished, self._unfinished = self._unfinished, ""
        if unfinished:
            yield unfinished
        if self._entries is None:
            self._entries = os.scandir(self._root)
        while budget.take():
            entry = next(self._entries, None)
            if entry is None:
                self.close()
                return
            yield entry.name

    def _gone(self, root: int, name: str) -> bool:
        match = _NAME.fullmatch(name)
        if match is None or os.path.lexists(self._pods / match[1]):
            return False
        try:
            found = os.stat(name, dir_fd=root, follow_symlinks=False)
        except OSError:
            return False
        if time.time() - found.st_ctime < self._least_age:
            return False
        return not stat.S_ISDIR(found.st_mode) or not _attached(root, name)


def _attached(root: int, name: str) -> bool:
    """Whether a process may still be attached to the region, also one that cannot be told."""
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=root)
    except OSError:
        return True
    try:
        with open_regular(directory, names.LOCK_FILE) as (file, _):
            return bool(held_slots(file, layout_v1.SLOTS))
    except RegionError as error:
        # A lease, or more locks than can be looked through: somebody lives. Otherwise there is no lock file that could
        # be held, as of HAMi-core, and the pod is gone all the same.
        return error.kind in (Kind.BUSY, Kind.LOCKS)
    finally:
        os.close(directory)


def _remove(parent: int, name: str, device: int, budget: Budget, depth: int = 0) -> bool:
    """Remove a name and what is below it. False if something is left: for another pass, or for ever."""
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        return budget.take() and _unlink(parent, name)
    except OSError as error:
        # A symbolic link that stands for a directory is ELOOP.
        return error.errno == errno.ELOOP and budget.take() and _unlink(parent, name)
    try:
        if os.fstat(directory).st_dev != device or depth == _DEEPEST:
            return False
        whole = True
        with os.scandir(directory) as entries:
            for entry in entries:
                if budget.left <= 0:
                    return False
                whole &= _remove(directory, entry.name, device, budget, depth + 1)
    except OSError:
        return False
    finally:
        os.close(directory)
    with suppress(OSError):
        if whole and budget.take():
            os.rmdir(name, dir_fd=parent)
            return True
    return False


def _unlink(parent: int, name: str) -> bool:
    with suppress(OSError):
        os.unlink(name, dir_fd=parent)
        return True
    return False
