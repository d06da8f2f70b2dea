"""libsync: what it costs while nothing happens, and how soon damage is put right."""

import contextlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.report import Row

BUILT = Path(__file__).parents[2] / "native/hami-core/build/libvgpu.so"
IDLE_SECONDS = 60.0
ROUNDS = 10
PATIENCE_SECONDS = 60.0

IDLE_BUDGET_PERCENT = 0.05
"""Of a core: what `ps`, with one decimal, and `kubectl top`, in thousandths, show as nothing."""
REPAIR_BUDGET_SECONDS = 5.0


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        library = place / BUILT.name
        shutil.copyfile(BUILT, library)
        with service(place / "node", library) as process:
            yield idle_row(process)
            baseline = statistics.median(replaced_by_hand(library) for _ in range(ROUNDS))
            for what, damage in DAMAGE.items():
                yield repair_row(what, damage, place / "node", library, baseline)
            yield repair_row(UNTOLD, None, place / "node", library, baseline)


@contextlib.contextmanager
def service(host_dir: Path, library: Path) -> Iterator["subprocess.Popen[str]"]:
    """`isolator-libsync run` with its defaults, once the node is right."""
    owner = f"{os.geteuid()}:{os.getegid()}"
    command = [sys.executable, "-m", "isolator_libsync", "run", "--host-dir", host_dir, "--library", library]
    flags = ["--owner", owner, "--listen-address", "127.0.0.1", "--listen-port", "0"]
    with subprocess.Popen([*map(str, command), *flags], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if json.loads(line)["event"] == "right":
                    break
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_SECONDS)


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used, to the nanosecond."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def idle_row(process: "subprocess.Popen[str]") -> Row:
    """CPU of the service and of an interpreter that only sleeps, over the same time."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10 ** 6)"]) as sleeper:
        time.sleep(2)
        before = cpu_seconds(process.pid), cpu_seconds(sleeper.pid)
        time.sleep(IDLE_SECONDS)
        used, slept = cpu_seconds(process.pid) - before[0], cpu_seconds(sleeper.pid) - before[1]
        sleeper.kill()
    percent = 100 * (used - slept) / IDLE_SECONDS
    return Row(
        what=f"libsync, {IDLE_SECONDS:.0f} s idle",
        baseline=f"an interpreter that sleeps: {1e3 * slept:.1f} ms CPU",
        measured=f"{1e3 * used:.1f} ms CPU ({percent:.3f} % of a core)",
        budget=f"no measurable CPU (< {IDLE_BUDGET_PERCENT} %)",
        held=percent < IDLE_BUDGET_PERCENT,
    )


def replaced_by_hand(library: Path) -> float:
    """Seconds that writing, syncing and renaming the same bytes takes on this disk."""
    content, target, new = library.read_bytes(), library.with_name("by-hand"), library.with_name("by-hand.new")
    begin = time.perf_counter()
    with new.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.rename(target)
    folder = os.open(library.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return time.perf_counter() - begin


def removed(library: Path) -> None:
    library.unlink()


def overwritten(library: Path) -> None:
    with library.open("r+b") as stream:
        stream.write(b"\0" * 64)


def closed(library: Path) -> None:
    library.chmod(0o600)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a library that was removed": removed,
    "one that was overwritten in place": overwritten,
    "one whose mode was changed": closed,
}

UNTOLD = "a write through a mapping that stays, of which the kernel does not tell"


def repair_row(what: str, damage: Callable[[Path], None] | None, host_dir: Path, source: Path, baseline: float) -> Row:
    """From the damage until the file is right again; without `damage` by a mapping."""
    library, content = host_dir / "libvgpu.so", source.read_bytes()
    taken = []
    for _ in range(ROUNDS if damage else 3):
        time.sleep(1)
        with contextlib.ExitStack() as mapping:
            if damage is None:
                stream = mapping.enter_context(library.open("r+b"))
                mapped = mapping.enter_context(mmap.mmap(stream.fileno(), 0))
                # What opening it for writing may tell is over.
                time.sleep(1)
            begin = time.perf_counter()
            if damage is None:
                mapped[-1] ^= 0xFF
            else:
                damage(library)
            while not is_right(library, content):
                time.sleep(0.001)
                if time.perf_counter() - begin > PATIENCE_SECONDS:
                    raise RuntimeError(f"{what}: not repaired within {PATIENCE_SECONDS:.0f} s")
            taken.append(time.perf_counter() - begin)
    return Row(
        what=f"libsync, repair of {what}",
        baseline=f"the same bytes written, synced and renamed: {1e3 * baseline:.1f} ms",
        measured=f"median {1e3 * statistics.median(taken):.1f} ms, longest {1e3 * max(taken):.1f} ms",
        budget=f"≤ {REPAIR_BUDGET_SECONDS:.0f} s",
        held=max(taken) <= REPAIR_BUDGET_SECONDS,
    )


def is_right(library: Path, content: bytes) -> bool:
    try:
        return library.stat().st_mode & 0o777 == 0o755 and library.read_bytes() == content
    except OSError:
        return False
