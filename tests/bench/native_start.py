"""libvgpu.so: what it adds to the start of a program without CUDA."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.report import Row
from tests.everywhere import builds
from tests.everywhere.container import machine_library

CLIENT = Path(__file__).parent / "native_start_client.c"
SPAWNS = 5000
START_BUDGET = 1.5


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        client = folder / "client"
        subprocess.run(["cc", "-O2", "-o", client, CLIENT, "-ldl"], check=True)
        empty = builds.compiled(["cc"], "empty", "-shared", "-fPIC", folder=folder / "empty")
        bare = builds.compiled(["cc"], "empty", "-shared", "-fPIC", "-nostdlib", folder=folder / "bare")
        yield start_row(client, empty, bare)


def start_microseconds(client: Path, *preloads: Path | None) -> list[float]:
    """Of /bin/true with each library, in turns: see the client."""
    libraries = [str(preload) if preload else "" for preload in preloads]
    done = subprocess.run([client, str(SPAWNS), "/bin/true", *libraries], check=True, capture_output=True, text=True)
    return [int(line) / 1e3 for line in done.stdout.split()]


def start_row(client: Path, empty: Path, bare: Path) -> Row:
    """Starts without a library, with an empty one as anyone builds it, a bare one without even libc, and ours.

    The budget is a ratio to the empty one; what the bare one adds is the least that any preloaded file can add.
    """
    without, *with_one = start_microseconds(client, None, empty, bare, machine_library())
    of_empty, of_bare, of_ours = (taken - without for taken in with_one)
    ratio = of_ours / of_empty
    return Row(
        what="start of /bin/true",
        baseline=f"an empty library adds {of_empty:.0f} us, a bare one {of_bare:.0f} us, to {without:.0f} us",
        measured=f"libvgpu.so adds {of_ours:.0f} us ({ratio:.2f} x, {of_ours / of_bare:.2f} x the bare one's)",
        budget=f"<= {START_BUDGET} x what an empty library adds",
        held=ratio <= START_BUDGET,
    )
