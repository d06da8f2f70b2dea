"""Run reader and server for a long time while pods come and go; print their memory every minute.

`python services/monitor/tests/soak.py SECONDS`
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write

PODS, GPUS, PROCESSES = 16, 2, 8
INTERVAL = "1"


def resident_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def write_pods(directory: Path, generation: int, image: bytes | bytearray) -> None:
    """Sixteen pods, of which one is new and one is gone in every generation."""
    items = []
    for number in range(generation, generation + PODS):
        uid = f"{number:08x}-0000-4000-8000-000000000000"
        place = directory / "regions" / f"{uid}_main"
        if not place.exists():
            write(place, image)
        items.append(
            {
                "metadata": {"name": f"p{number}", "namespace": "team", "uid": uid, "annotations": {"gpu-memory": "1"}},
                "spec": {"containers": [{"name": "main"}]},
                "status": {"phase": "Running"},
            }
        )
    old = directory / "regions" / f"{generation - 1:08x}-0000-4000-8000-000000000000_main"
    for path in (*old.glob("*"),) if old.exists() else ():
        path.unlink()
    if old.exists():
        old.rmdir()
    (directory / "pods.new").write_text(json.dumps({"kind": "PodList", "items": items}))
    (directory / "pods.new").rename(directory / "pods.json")


def main() -> None:
    seconds = float(sys.argv[1])
    slots = {2 * index: Slot(index + 1, [Use(buffer=1 << 20)] * GPUS) for index in range(PROCESSES)}
    image = RegionImage([Card(f"GPU-{index}", 1 << 30) for index in range(GPUS)], slots).v1()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_pods(directory, 0, image)
        program = [sys.executable, "-m", "isolator_monitor"]
        server = subprocess.Popen(
            [*program, "serve", "--pods-file", f"{name}/pods.json", "--reader-socket", f"{name}/s",
             "--update-interval", INTERVAL, "--listen-address", "127.0.0.1", "--listen-port", "0"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        reader = subprocess.Popen(
            [*program, "read", "--reader-socket", f"{name}/s", "--region-root", f"{name}/regions"],
            stderr=subprocess.DEVNULL,
        )
        try:
            port = next(e["port"] for e in map(json.loads, server.stderr or ()) if e["event"] == "listening")
            with hold(next(directory.rglob("usage.lock")), [0, 2]):
                run(directory, port, server.pid, reader.pid, image, seconds)
        finally:
            server.kill()
            reader.kill()
            server.communicate()
            reader.wait()


def run(directory: Path, port: int, server: int, reader: int, image: bytes | bytearray, seconds: float) -> None:
    start = time.monotonic()
    minute, generation = -1, 0
    print("minute  server kB  reader kB  server fds  reader fds  series", flush=True)
    while (passed := time.monotonic() - start) < seconds:
        time.sleep(2)
        generation += 1
        write_pods(directory, generation, image)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            series = sum(not line.startswith(b"#") for line in answer)
        if int(passed / 60) != minute:
            minute = int(passed / 60)
            used = (resident_kb(server), resident_kb(reader), descriptors(server), descriptors(reader))
            print(f"{minute:6}  {used[0]:9}  {used[1]:9}  {used[2]:10}  {used[3]:10}  {series:6}", flush=True)


if __name__ == "__main__":
    main()
