"""vramd killed, hung, slow and back while reviews come in: none fails, and none waits much longer than the deadline.

The bounds are ten times as wide as what `nox -s bench` holds the webhook to. Reviews come at the bench's rate, or on a
machine that is busy with other things at a quarter of what it can do: a queue of its own would hide vramd's part.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from tests.bench import webhook as bench

pytestmark = pytest.mark.slow

SECONDS = bench.FAULT_SECONDS
SLACK = 10
LONGEST = SLACK * (bench.DEADLINE_MS / 1e3 + 0.05)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        bench.certificates(Path(name))
        (Path(name) / "nodes.yaml").write_text(bench.NODES)
        yield Path(name)


@contextlib.contextmanager
def vramd(directory: Path, port: int = 0) -> Iterator[bench.Started]:
    arguments = ["-m", "isolator_vramd", "serve", "--nodes-file", str(directory / "nodes.yaml")]
    listen = ["--listen-address", "127.0.0.1", "--listen-port", str(port), "--metrics-port", "0"]
    with bench.started([*arguments, *listen]) as process:
        yield process


def bearable(directory: Path, port: int) -> int:
    """Reviews a second that leave this machine time for others."""
    possible = len(uvloop.run(bench.flat_out(directory, port, bench.FREE, 1.0)))
    return max(1, min(bench.FAULT_RATE, possible // 4))


@pytest.mark.parametrize("fault", bench.FAULTS.values(), ids=bench.FAULTS)
@pytest.mark.parametrize("body", [bench.FREE, bench.PINNED], ids=["free", "pinned"])
def test_no_review_fails_or_waits(
    directory: Path, fault: Callable[[subprocess.Popen[bytes]], None], body: bytes
) -> None:
    with vramd(directory) as basis, bench.webhook(directory, f"127.0.0.1:{basis.port}") as webhook:
        rate = bearable(directory, webhook.port)
        took = uvloop.run(bench.paced(directory, webhook.port, body, rate, SECONDS, lambda: fault(basis.process)))
    assert len(took) == int(rate * SECONDS)
    assert max(took) < LONGEST


def test_the_webhook_finds_vramd_again(directory: Path) -> None:
    with contextlib.ExitStack() as first:
        basis = first.enter_context(vramd(directory))
        with bench.webhook(directory, f"127.0.0.1:{basis.port}") as webhook:
            first.close()
            rate = bearable(directory, webhook.port)
            took = uvloop.run(bench.paced(directory, webhook.port, bench.PINNED, rate, 1.0))
            assert max(took) < LONGEST
            (directory / "nodes.yaml").write_text(bench.NODES.replace("15360", "40960"))
            with vramd(directory, basis.port):
                end = time.monotonic() + bench.START_SECONDS
                while limit_of(directory, webhook.port) != "10240m":
                    assert time.monotonic() < end
                    time.sleep(0.1)
    (directory / "nodes.yaml").write_text(bench.NODES)


def limit_of(directory: Path, port: int) -> str:
    """The limit that a pod gets for a quarter of a GPU."""
    return uvloop.run(bench.limit_of(directory, port, bench.PINNED))
