"""What a run leaves that was killed, and what holds up another one: neither stops the next."""

import base64
import os
import secrets
import select
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster import https, network, waiting
from tests.cluster.client import Object

from isolator_testing.processes import running
from isolator_testing.tools import require, require_root

ROOT = Path(__file__).parents[2]
SECONDS = 60


@contextmanager
def another_run(block: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process, which is in a `with` block of the test cluster's modules."""
    imports = (
        "import subprocess", "import time", "from pathlib import Path",
        "from tests.cluster import network, processes, waiting", "from isolator_testing.processes import dying_with_us",
    )  # fmt: skip
    script = "\n".join((*imports, block, ""))
    command = [sys.executable, "-c", f"{script}    print('there', flush=True)\n    time.sleep(1000)"]
    with running(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(SECONDS)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Progress, which is printed past pytest's capture."""
    lines: list[str] = []
    monkeypatch.setattr(waiting, "say", lines.append)
    return lines


def test_who_waits_for_a_lock_says_for_what_and_for_whom(tmp_path: Path, said: list[str]) -> None:
    with another_run(f"with waiting.alone(Path({str(tmp_path)!r}), 'the cache', 0):") as other:
        with (
            pytest.raises(
                TimeoutError, match=rf"^the cache: still held by process {other.pid} \(\S*python.* after 1 s \(lock"
            ),
            waiting.alone(tmp_path, "the cache", 1),
        ):
            pass
        assert any(f"waiting for the cache, held by process {other.pid} (" in line for line in said)
        kill(other)
        with waiting.alone(tmp_path, "the cache", SECONDS):
            pass


def test_a_program_ends_with_the_run_that_started_it(tmp_path: Path) -> None:
    require("setpriv", package="util-linux")
    pid = tmp_path / "pid"
    start = f"processes.start('sleep', ['sleep', '1000'], Path({str(tmp_path / 'log')!r})).process.pid"
    with another_run(f"if Path({str(pid)!r}).write_text(str({start})):") as other:
        started = os.pidfd_open(int(pid.read_text()))
        try:
            assert not ended(started, 0)
            kill(other)
            assert ended(started, SECONDS)
        finally:
            os.close(started)


def test_a_program_does_not_begin_once_who_started_it_is_gone(tmp_path: Path) -> None:
    require("setpriv", package="util-linux")
    pid, wait, begun = (tmp_path / name for name in ("pid", "wait", "begun"))
    os.mkfifo(wait)
    late = ["sh", "-c", 'read line < "$0"; exec "$@"', str(wait)]
    start = f"subprocess.Popen([*{late}, *dying_with_us(['touch', {str(begun)!r}])], start_new_session=True).pid"
    with another_run(f"if Path({str(pid)!r}).write_text(str({start})):") as other:
        started = os.pidfd_open(int(pid.read_text()))
        try:
            kill(other)
            with wait.open("r+b", buffering=0) as line:
                line.write(b"go on\n")
                assert ended(started, SECONDS)
        finally:
            os.close(started)
    assert not begun.exists()


def ended(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


@pytest.mark.root
def test_namespaces_of_a_killed_run_are_removed_by_the_next(said: list[str]) -> None:
    require_root()
    killed, alive, own = (f"{network.PREFIX}test-{secrets.token_hex(4)}" for _ in range(3))
    block = "with network.namespace({name!r}) as where:\n    network.ip('netns', 'add', network.of_pod(where, 0))"
    with another_run(block.format(name=killed)) as first, another_run(f"with network.namespace({alive!r}):"):
        kill(first)
        assert {killed, f"{killed}.0", alive} <= there()
        with network.namespace(own):
            assert there() & {killed, f"{killed}.0", alive, own} == {alive, own}
            assert any(f"removing the network namespace {killed}," in line for line in said)
        with network.namespace(killed):
            assert killed in there()
    with network.namespace(own):
        assert not there() & {killed, alive}


def there() -> set[str]:
    return {path.name for path in network.NAMESPACES.iterdir()}


def test_a_client_that_says_nothing_holds_up_nobody(tmp_path: Path) -> None:
    def answer(path: str, _body: Object) -> Object:
        return {"asked": path}

    with (
        https.serving(network.LOOPBACK, "127.0.0.1", "localhost", tmp_path, answer) as served,
        socket.create_connection(("127.0.0.1", served.port)),
    ):
        context = ssl.create_default_context(cadata=base64.b64decode(served.ca_bundle).decode())
        url = f"https://localhost:{served.port}/a?b"
        with urllib.request.urlopen(url, context=context, timeout=SECONDS) as response:
            assert response.read() == b'{"asked": "/a?b"}'
