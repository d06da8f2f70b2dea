"""The four services as processes of this machine, and the node that they are started for."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from isolator_testing.processes import dying_with_us

ADDRESS = "127.0.0.1"
READY_SECONDS = 20.0
POLL_SECONDS = 0.02
END_SECONDS = 10.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ServiceFailure(Exception):
    """A service that does not do its work; the text says which and why."""


@dataclass(frozen=True)
class Service:
    """A running service."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def events(self) -> list[dict[str, Any]]:
        """What it has logged: a JSON object a line. Raises ServiceFailure at a line that is none."""
        complete = self.log.read_text().rpartition("\n")[0].splitlines()
        try:
            return [json.loads(line) for line in complete]
        except json.JSONDecodeError as error:
            raise ServiceFailure(f"{self.name} wrote to standard error: {error.doc}") from error

    def complaints(self) -> list[str]:
        """What it logged as an error, each once, and its end if it ended by itself."""
        wrong = [event for event in self.events() if event["level"] in ("error", "critical")]
        said = [f"{event['event']}: {str(event.get('exception', '')).rpartition(chr(10))[2]}" for event in wrong]
        if (status := self.process.poll()) is not None:
            said.append(f"ended with status {status}")
        return [f"{self.name}: {text}" for text in dict.fromkeys(said)]

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first log line with this event. Raises ServiceFailure if it does not come."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            found = next((line for line in self.events() if line["event"] == event), None)
            if found is not None:
                return found
            if self.process.poll() is not None:
                last = self.log.read_text().strip().rpartition("\n")[2]
                raise ServiceFailure(f"{self.name} ended with status {self.process.returncode}: {last}")
            time.sleep(POLL_SECONDS)
        raise ServiceFailure(f"{self.name} did not log {event} within {READY_SECONDS:.0f} s")


@contextlib.contextmanager
def running(
    name: str, arguments: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """`isolator-NAME ARGUMENTS…` for the length of a block; ended by SIGTERM, and killed if this process dies."""
    log = directory / f"{name}.log"
    program = Path(sys.executable).with_name(f"isolator-{name}")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            dying_with_us([program, *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={"PATH": PATH, **(environment or {})},
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield Service(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(service: Service, url: str, trust: ssl.SSLContext | None = None) -> None:
    """Wait until a service's readiness answers 200. Raises ServiceFailure if it does not."""
    deadline = time.monotonic() + READY_SECONDS
    said = "nothing"
    while time.monotonic() < deadline:
        try:
            answer = httpx.get(url, verify=trust or False, timeout=5, trust_env=False)
        except httpx.HTTPError as error:
            said = repr(error)
        else:
            if answer.status_code == httpx.codes.OK:
                return
            said = f"{answer.status_code} {answer.text}"
        if service.process.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    raise ServiceFailure(f"{service.name} is not ready, {url} says {said}")


@contextlib.contextmanager
def unused_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody else can, for the length of a block."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.bind((ADDRESS, 0))
        yield int(reserved.getsockname()[1])


def write_atomically(path: Path, text: str) -> None:
    """Replace a file that a service follows."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)  # noqa: PTH105
