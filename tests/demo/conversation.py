"""Talking to `workload.py` in a container."""

import json
import select
from typing import Any

from tests.node.runtime import Process

ANSWER_SECONDS = 15.0
MIB = 1 << 20


class WorkloadFailure(Exception):
    """The workload did not start or did not answer; the text has what it wrote to standard error."""


class Workload:
    """A process that uses the GPU. Every line that it says is kept in `said` until it is taken."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self._process = process
        self._said: list[str] = []
        start = self._read()["start"]
        if start != "ready":
            raise WorkloadFailure(f"{name} cannot use the GPU: {start}; {self._errors()}")

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to one command."""
        try:
            self._process.stdin.write(command + "\n")
        except BrokenPipeError as error:
            raise WorkloadFailure(f"{self.name} has ended: {self._errors()}") from error
        return self._read()

    def alloc(self, mib: int) -> str:
        """Ask for memory and return the result's name."""
        return str(self.ask(f"alloc {mib}")["result"])

    def visible(self) -> str:
        """Memory of the GPU as CUDA and NVML tell it, one number if they agree."""
        info = self.ask("info")
        parts = ("cuMemGetInfo", "cuDeviceTotalMem", "nvmlDeviceGetMemoryInfo")
        return " / ".join(sorted({mib_text(info[part]["total_bytes"]) for part in parts}))

    def take_said(self) -> list[str]:
        """The lines since the last time, each with who said it."""
        taken = [f"{self.name}: {line}" for line in self._said]
        self._said.clear()
        return taken

    def end(self) -> None:
        """End the process, and with it what it holds."""
        self._process.kill()

    def _read(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            what = "has ended" if ready else f"did not answer within {ANSWER_SECONDS:.0f} s"
            raise WorkloadFailure(f"{self.name} {what}: {self._errors()}")
        self._said.append(line.rstrip("\n"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _errors(self) -> str:
        return " ".join(self._process.errors.read_text(errors="replace").split()) or "nothing on standard error"


def mib_text(size: int) -> str:
    """Bytes as people read them, exact."""
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size} bytes"
