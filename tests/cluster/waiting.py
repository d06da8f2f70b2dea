"""What takes long and what several runs want at once: said while it lasts, and never waited for without an end."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

PROGRESS_SECONDS = 15
POLL_SECONDS = 0.2
COMMAND_LENGTH = 120

_visibly: Callable[[], AbstractContextManager[None]] = nullcontext


def say_within(visibly: Callable[[], AbstractContextManager[None]]) -> None:
    """Have `say` print within this context from now on, such as the one in which pytest captures nothing."""
    global _visibly
    _visibly = visibly


def say(text: str) -> None:
    """One line of progress on standard error, at once: a run that builds for minutes in silence seems to hang."""
    with _visibly():
        print(f"cluster: {text}", file=sys.stderr, flush=True)


def _holder(path: Path) -> str:
    """Who holds a lock on a file, as proc_locks(5) tells it."""
    status = path.stat()
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for fields in map(str.split, Path("/proc/locks").read_text().splitlines()):
        if file in fields and "->" not in fields:
            process = Path("/proc") / fields[4]
            command = (process / "cmdline").read_bytes() if process.exists() else b""
            words = command.replace(bytes(1), b" ").decode(errors="replace").split()
            return f"process {fields[4]} ({' '.join(words)[:COMMAND_LENGTH]})"
    return "a process that this one cannot see"


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on a file or directory until it is closed; None while another one holds it.

    It is flock(2)'s: the kernel lets go of it when its holder ends, however it ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def alone(path: Path, what: str, seconds: float) -> Iterator[None]:
    """Hold the lock on a file or directory for the time of a block, and say while it must be waited for.

    `what` is what the lock is for. Raises TimeoutError that names it and who holds it, after `seconds`.
    """
    started, said = time.monotonic(), 0.0
    while (descriptor := try_lock(path)) is None:
        now = time.monotonic()
        if now - started > seconds:
            raise TimeoutError(f"{what}: still held by {_holder(path)} after {seconds:.0f} s (lock {path})")
        if now - said > PROGRESS_SECONDS:
            said = now
            say(f"  waiting for {what}, held by {_holder(path)} ({now - started:.0f} s)")
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)
