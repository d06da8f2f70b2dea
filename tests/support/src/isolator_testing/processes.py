"""Programs that a test starts: none outlives the block it was started for, and none that hangs is waited for."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def dying_with_us(command: Sequence[str | Path]) -> list[str | Path]:
    """The same program, which ends with the calling thread, also by SIGKILL.

    By util-linux's setpriv: prctl(2), PR_SET_PDEATHSIG, which outlives execve(2). The signal is for a death that is
    yet to come: the shell, which begins after that, does not go on if its parent is another one by then.
    """
    unless_orphaned = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid()))
    return ["setpriv", "--pdeathsig", "KILL", "--", *unless_orphaned, *command]


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
