"""Programs that run beside a test: started with a log file each, stopped by their own PID, never left behind.

Each dies with whoever started it, also by SIGKILL: what a killed run leaves would go on taking the machine's time, and
whatever reads a pipe that it inherited would wait for its end.
"""

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isolator_testing.processes import dying_with_us

STOP_SECONDS = 30


@dataclass
class Running:
    """One running program."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_lines(self, count: int = 20) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def check_alive(self) -> None:
        """Raise RuntimeError with the end of the log if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self.process.returncode}:\n{self.last_lines()}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it, by SIGKILL if it does not go within half a minute, and return its status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            said = f"{self.name} (PID {self.process.pid}) is there {STOP_SECONDS} s after SIGKILL"
            raise TimeoutError(f"{said}:\n{self.last_lines()}") from error


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Running:
    """Start a program with both outputs appended to `log`, in a session of its own so that Ctrl-C does not reach it.

    To be called by the main thread: "whoever started it" is to the kernel the thread that did.
    """
    assert threading.current_thread() is threading.main_thread(), f"{name} would end with this thread"
    with log.open("ab") as output:
        process = subprocess.Popen(
            dying_with_us(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
            env=None if environment is None else dict(environment), start_new_session=True,
        )  # fmt: skip
    return Running(name, process, log)
