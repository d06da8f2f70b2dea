"""Pods out of a file, read again when it changes."""

from pathlib import Path

import structlog

from isolator_core.errors import SettingsError, UserError
from isolator_monitor.pods import Pod, parse_pods

_log = structlog.get_logger()


class PodsFile:
    """The pods that a PodList file names."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises UserError if it is not there or not a PodList."""
        self._path = path
        self._seen = self._identity()
        self._pods = parse_pods(self._read(), str(path))

    def pods(self) -> tuple[Pod, ...]:
        """The pods of now. A file that has become wrong is logged, and the last good list stays."""
        try:
            identity = self._identity()
            if identity != self._seen:
                self._seen = identity
                self._pods = parse_pods(self._read(), str(self._path))
                _log.info("pods_changed", file=str(self._path), pods=len(self._pods))
        except UserError as error:
            _log.warning("pods_file_wrong", error=str(error))
        return self._pods

    def _identity(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise SettingsError(f"--pods-file {self._path}: {error.strerror}") from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise SettingsError(f"--pods-file {self._path}: {error.strerror}") from error
