"""Pods out of a file, read again when it changes."""

import time
from pathlib import Path

import structlog

from isolator_core.errors import SettingsError
from isolator_monitor.pods import Pod, parse_pods

_log = structlog.get_logger()


class PodsFile:
    """The pods that a PodList file names."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises SettingsError if it is not there or not a PodList."""
        self._path = path
        self._seen = self._identity()
        self._pods = self._parse()
        self._confirmed = time.time()
        self._said = ""

    def pods(self) -> tuple[tuple[Pod, ...], float]:
        """The pods of now, and when they were known to be right. A file that became wrong leaves the last good ones."""
        try:
            identity = self._identity()
            if identity != self._seen:
                self._pods = self._parse()
                self._seen = identity
                _log.info("pods_changed", file=str(self._path), pods=len(self._pods))
            self._confirmed = time.time()
            self._said = ""
        except SettingsError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("pods_file_wrong", error=str(error))
        return self._pods, self._confirmed

    def failures(self) -> dict[str, int]:
        """None: a file has no API server that could fail."""
        return {}

    def _identity(self) -> tuple[int, int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise SettingsError(f"--pods-file {self._path}: {error.strerror}") from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _parse(self) -> tuple[Pod, ...]:
        try:
            return parse_pods(self._path.read_bytes(), str(self._path))
        except OSError as error:
            raise SettingsError(f"--pods-file {self._path}: {error.strerror}") from error
