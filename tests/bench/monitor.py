"""The monitor: a snapshot of a full node, a scrape of it, and the memory of its two processes."""

import fcntl
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.report import Row

from isolator_core import http_server, names
from isolator_monitor import metrics
from isolator_monitor.local_node import LocalNode
from isolator_monitor.monitor import Monitor
from isolator_monitor.pods_file import PodsFile
from isolator_monitor.targets import Root, targets
from isolator_monitor.view import Observer, View
from isolator_testing.regions import Card, RegionImage, Slot, Use

CONTAINERS, GPUS, PROCESSES = 64, 8, 32
ROUNDS = 7
SCRAPES = 40
PORT_SECONDS = 60.0

_UUIDS = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(GPUS)]


def rows() -> Iterator[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory, full_node(Path(directory)) as (pods, root):
        take = taker(pods, root)
        yield snapshot_row(take)
        yield scrape_row(take)
        yield from memory_rows(pods, root)


@contextmanager
def full_node(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Regions of a full node, their slots held, and the PodList that names them."""
    root = directory / "regions"
    slots = {
        2 * index: Slot(index + 1, [Use(64 << 20, 1 << 20, (index + 1) << 20, index % 4)] * GPUS)
        for index in range(PROCESSES)
    }
    image = RegionImage([Card(uuid, 8 << 30, refusals=1) for uuid in _UUIDS], slots, last_kernel_time=1).v1()
    items = []
    for number in range(CONTAINERS):
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        place = root / f"{uid}_main"
        place.mkdir(parents=True)
        (place / names.REGION_FILE).write_bytes(image)
        (place / names.LOCK_FILE).touch()
        items.append(
            {
                "metadata": {"name": f"training-{number}", "namespace": "team", "uid": uid},
                "spec": {"containers": [{"name": "main"}]},
            }
        )
    pods = directory / "pods.json"
    pods.write_text(json.dumps({"kind": "PodList", "items": items}))
    ready, tell = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            for place in root.iterdir():
                file = os.open(place / names.LOCK_FILE, os.O_RDWR)
                for slot in slots:
                    fcntl.lockf(file, fcntl.LOCK_EX, 1, slot)
            os.write(tell, b".")
            while os.getppid() != 1:
                time.sleep(1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    try:
        yield pods, root
    finally:
        os.kill(holder, 9)
        os.waitpid(holder, 0)


def taker(pods: Path, root: Path) -> Callable[[], View]:
    """What the monitor does for a view, in this process."""
    source = PodsFile(pods)
    node = LocalNode({Root.REGIONS: [root]}, None, 1.0)
    observer = Observer(names.CONTAINER_DIR, "kai-resource-reservation")

    def take() -> View:
        found, confirmed = source.pods()
        return observer.observe(found, confirmed, node.read(targets(found, names.CONTAINER_DIR, by_name=True)))

    return take


def snapshot_row(take: Callable[[], View]) -> Row:
    """CPU of reading and rendering once."""
    spent = []
    for _ in range(ROUNDS):
        start = time.process_time()
        families = tuple(metrics.families(take()))
        read = time.process_time()
        metrics.render(families)
        metrics.render_openmetrics(families)
        spent.append((time.process_time() - start, read - start))
    whole, read = (statistics.median(part) * 1000 for part in zip(*spent, strict=True))
    return Row(
        what=f"monitor: snapshot of {CONTAINERS} containers × {GPUS} GPUs × {PROCESSES} processes",
        baseline="–",
        measured=f"{whole:.0f} ms CPU, of which {whole - read:.0f} ms rendering twice",
        budget="≤ 300 ms CPU",
        held=whole <= 300,
    )


def scrape_row(take: Callable[[], View]) -> Row:
    """A scrape, beside static bytes of the same size from the same server."""
    monitor = Monitor(take, 3600.0, legacy=False)
    monitor.update()
    body = monitor.answer("/metrics", "")[2]

    def answer(path: str, accept: str) -> http_server.Answer:
        return (200, "text/plain", body) if path == "/static" else monitor.answer(path, accept)

    with http_server.make_server("127.0.0.1", 0, answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
        seconds: dict[str, list[float]] = {"/static": [], "/metrics": []}
        for _ in range(SCRAPES):
            for path, taken in seconds.items():
                start = time.perf_counter()
                connection.request("GET", path)
                connection.getresponse().read()
                taken.append(time.perf_counter() - start)
        connection.close()
        server.shutdown()
    static, scraped = (statistics.median(taken) * 1000 for taken in seconds.values())
    return Row(
        what="monitor: a scrape of it",
        baseline=f"{static:.2f} ms for {len(body) / 1e6:.1f} MB of static bytes",
        measured=f"{scraped:.2f} ms",
        budget="≤ 5 ms more",
        held=scraped <= static + 5,
    )


def memory_rows(pods: Path, root: Path) -> Iterator[Row]:
    """Resident memory of server and reader at work, beside the interpreter with the same imports."""
    program = [sys.executable, "-m", "isolator_monitor"]
    socket = str(pods.with_name("s"))
    quick = ["--listen-address", "127.0.0.1", "--listen-port", "0", "--update-interval", "1"]
    serve = [*program, "serve", "--pods-file", str(pods), "--reader-socket", socket, *quick]
    read = [*program, "read", "--reader-socket", socket, "--region-root", str(root)]
    with (
        started(serve, stderr=subprocess.PIPE) as server,
        started(read, stderr=subprocess.DEVNULL) as reader,
        idle("isolator_monitor.cli, isolator_monitor.serve") as serve_imports,
        idle("isolator_monitor.cli, isolator_monitor.read") as read_imports,
    ):
        port = next(
            entry["port"] for entry in map(json.loads, server.stderr or ()) if entry.get("event") == "listening"
        )
        scrape_until_complete(port)
        time.sleep(10)
        for what, process, imports, most in (
            ("server", server, serve_imports, 90),
            ("reader", reader, read_imports, 60),
        ):
            base, measured = resident_mb(imports.pid), resident_mb(process.pid)
            yield Row(
                what=f"monitor {what}, resident",
                baseline=f"{base:.0f} MB interpreter with the same imports",
                measured=f"{measured:.0f} MB",
                budget=f"≤ {most} MB and ≤ 15 MB above",
                held=measured <= most and measured <= base + 15,
            )


@contextmanager
def idle(modules: str) -> Iterator[subprocess.Popen[bytes]]:
    """An interpreter that has imported modules and does nothing."""
    program = f"import {modules}, time; print(flush=True); time.sleep(300)"
    with started([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process


@contextmanager
def started(command: list[str], **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended afterwards."""
    process = subprocess.Popen(command, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def scrape_until_complete(port: int) -> None:
    """Wait until every container is in the metrics."""
    deadline = time.monotonic() + PORT_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/metrics")
        body = connection.getresponse().read()
        connection.close()
        if body.count(b"hami_vgpu_memory_used_bytes{") == CONTAINERS * GPUS:
            return
        time.sleep(0.2)
    raise TimeoutError("the monitor did not show every container")


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0
