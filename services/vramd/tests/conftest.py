"""A vramd as a real process, and a client of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from isolator_core.proto import vram_pb2_grpc

WAIT_SECONDS = 30.0
LOOPBACK = ("--listen-address", "127.0.0.1", "--listen-port", "0", "--metrics-port", "0")


@dataclass
class Vramd:
    """A running `isolator-vramd serve`."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def event(self, name: str) -> dict[str, Any]:
        """The next log line with this event; the test's time limit bounds the wait."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line: dict[str, Any] = json.loads(text)
            self.lines.append(line)
            if line["event"] == name:
                return line
        raise AssertionError(f"no {name} before the end; logged: {self.lines}")

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def stub(self) -> vram_pb2_grpc.VramStub:
        return vram_pb2_grpc.VramStub(self.channel())

    @property
    def port(self) -> int:
        return int(next(line["port"] for line in self.lines if line["event"] == "listening"))

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Without what the developer's own shell sets."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ISOLATOR_", "PER_GPU", "KUBE"))}
    return kept | {"HOME": str(tmp_path)}


@pytest.fixture
def vramd(environment: dict[str, str]) -> Iterator[Callable[..., Vramd]]:
    """Start `isolator-vramd serve` on a free port with these arguments and wait until it listens."""
    started: list[Vramd] = []

    def start(*arguments: str, **variables: str) -> Vramd:
        process = subprocess.Popen(
            [sys.executable, "-m", "isolator_vramd", "serve", *LOOPBACK, *arguments],
            env=environment | variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        running = Vramd(process)
        started.append(running)
        running.event("listening")
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait(WAIT_SECONDS)
        assert running.process.stderr is not None
        running.process.stderr.close()


@pytest.fixture
def command(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `isolator-vramd` to its end."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "isolator_vramd", *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )

    return run
