"""Programs that run beside a test: started with a log file each, stopped by their own PID."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        return self.process.wait()


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Running:
    """Start a program with both outputs appended to `log`, in a session of its own so that Ctrl-C does not reach it."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd,
            env=None if environment is None else dict(environment), start_new_session=True,
        )  # fmt: skip
    return Running(name, process, log)
