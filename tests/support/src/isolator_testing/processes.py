"""Programs that a test starts: none outlives the block it was started for, and none that hangs is waited for."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """A program for the time of a `with` block, killed at its end if it has not ended, as after a failed assertion.

    `subprocess.Popen` alone would wait there for its end, for ever. `options` are its own.
    """
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
