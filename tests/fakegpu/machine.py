"""A machine with fake cards for a test, and Python processes on it that use NVIDIA's own bindings."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LIBRARIES = FOLDER / "build"
MIB = 1024 * 1024
ANSWER_SECONDS = 600
CONTEXT_BYTES = 100 * MIB


@dataclass(frozen=True)
class Card:
    """A [device] section; extra holds further keys."""

    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    name: str = "Tesla T4"
    memory_mib: int = 15360
    extra: dict[str, str] = field(default_factory=dict)

    def section(self) -> str:
        keys = {"name": self.name, "uuid": self.uuid, "memory-mib": str(self.memory_mib), **self.extra}
        return "[device]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


T4 = Card()


class Process:
    """A Python process under remote control: statements run and expressions are answered in its own namespace.

    There, `d` is cuda.bindings.driver, `n` is pynvml, `ok(answer)` the values of a driver call that must succeed and
    `code(answer)` the name of its result.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def send(self, source: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(source) + "\n")
        self.popen.stdin.flush()

    def receive(self) -> Any:
        assert self.popen.stdout is not None
        if not select.select([self.popen.stdout], [], [], ANSWER_SECONDS)[0]:
            self.popen.kill()
            raise AssertionError(f"process {self.popen.pid} has not answered within {ANSWER_SECONDS} s")
        line = self.popen.stdout.readline()
        if not line:
            raise AssertionError(f"the process ended with {self.popen.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def run(self, source: str) -> Any:
        """Value of an expression, or None after statements."""
        self.send(source)
        return self.receive()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.close()

    def close(self) -> None:
        """Let it end by itself, or kill it if it does not."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()
        try:
            self.popen.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.popen.stdout.close()


@dataclass(frozen=True)
class Machine:
    """A configuration file and the state file beside it."""

    config: Path

    def environment(self, **variables: str) -> dict[str, str]:
        """The test's environment with the fake driver in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_"))}
        return kept | {"FAKEGPU_CONFIG": str(self.config), "LD_LIBRARY_PATH": str(LIBRARIES)} | variables

    @contextmanager
    def process(self, *, wrapper: tuple[str, ...] = (), **variables: str) -> Iterator[Process]:
        """A process that has called cuInit's module but not cuInit."""
        started = Process([*wrapper, sys.executable, str(FOLDER / "client.py")], self.environment(**variables))
        try:
            yield started
        finally:
            started.close()

    @contextmanager
    def user(self, *, device: int = 0, wrapper: tuple[str, ...] = (), **variables: str) -> Iterator[Process]:
        """A process with the primary context of a device current."""
        with self.process(wrapper=wrapper, **variables) as process:
            process.run("ok(d.cuInit(0))")
            process.run(f"dev = ok(d.cuDeviceGet({device}))")
            process.run("ctx = ok(d.cuDevicePrimaryCtxRetain(dev))")
            process.run("ok(d.cuCtxSetCurrent(ctx))")
            yield process

    def nvidia_smi(self, *arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, str(FOLDER / "nvidia-smi"), *arguments],
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def books(self, device: int = 0) -> Any:
        """The fake driver's own books of one device: see src/books/main.c."""
        return self.all_books()[device]

    def all_books(self) -> Any:
        """The same of every device."""
        done = subprocess.run(
            [LIBRARIES / "fakegpu-books"], env=self.environment(), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)["devices"]

    def held(self, process: Process, device: int = 0) -> dict[str, int]:
        """What a process holds of a device, in bytes by kind, without what is zero."""
        for entry in self.books(device)["processes"]:
            if entry["host_pid"] == process.popen.pid:
                return {kind: held for kind, held in entry["by_kind"].items() if held}
        return {}

    def used_mib(self, device: int = 0) -> int:
        query = ("-i", str(device), "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return int(self.nvidia_smi(*query))


def make_machine(folder: Path, *cards: Card, **settings: str) -> Machine:
    """Write a configuration with these cards (a Tesla T4 if none) and settings."""
    lines = {"state": "state", **settings}
    text = "".join(f"{key} = {value}\n" for key, value in lines.items())
    config = folder / "fakegpu.conf"
    config.write_text(text + "".join(card.section() for card in cards or (T4,)))
    return Machine(config)
