"""While one tenant does its worst, the monitor answers, stays small, and tells the truth about all others."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write

UUID = "GPU-00000000-0000-0000-0000-000000000001"
SECONDS = 8.0
SLOWEST_SCRAPE_SECONDS = 5.0
MOST_GROWTH_KB = 20 << 10


def resident_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


@pytest.mark.slow
def test_a_tenant_that_does_its_worst_harms_only_itself(tmp_path: Path) -> None:
    root = tmp_path / "regions"
    image = RegionImage([Card(UUID, 4 << 30)], {3: Slot(7, [Use(buffer=3 << 30)])})
    write(root / "u-1_main", image.v1())
    write(root / "u-2_main", image.v1())
    items = [
        {
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "spec": {"containers": [{"name": "main"}]},
        }
        for name, uid in (("honest", "u-1"), ("hostile", "u-2"))
    ]
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"kind": "PodList", "items": items}))
    monitor = subprocess.Popen(
        [sys.executable, "-m", "isolator_monitor", "serve", "--pods-file", pods, "--region-root", root,
         "--listen-address", "127.0.0.1", "--listen-port", "0", "--update-interval", "0.02"],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert monitor.stderr
        port = next(entry["port"] for entry in map(json.loads, monitor.stderr) if entry["event"] == "listening")
        with hold(root / "u-1_main" / "usage.lock", [3]):
            tenant = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("hostile_tenant.py"), root / "u-2_main", root / "u-1_main",
                 str(SECONDS)],
                stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            time.sleep(1)
            before, kinds = resident_kb(monitor.pid), set()
            while tenant.poll() is None:
                start = time.monotonic()
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    text = answer.read().decode()
                assert time.monotonic() - start < SLOWEST_SCRAPE_SECONDS
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        if sample.name == "isolator_region_errors_total":
                            kinds.add(sample.labels["kind"])
                        if sample.name == "isolator_monitor_snapshot_age_seconds":
                            assert sample.value < SLOWEST_SCRAPE_SECONDS
                        if sample.labels.get("pod") == "honest" and sample.name == "hami_vgpu_memory_used_bytes":
                            assert sample.value == 3 << 30
                        if sample.labels.get("pod") == "hostile" and sample.name == "hami_vgpu_memory_used_bytes":
                            # Never what the other tenant holds.
                            assert sample.value != 3 << 30
            assert int(tenant.communicate()[0]) > 50
        assert resident_kb(monitor.pid) - before < MOST_GROWTH_KB
        assert {"link", "not_regular", "size"} <= kinds
        assert len(list(Path(f"/proc/{monitor.pid}/fd").iterdir())) < 64
        monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(30) == 0
    finally:
        monitor.kill()
        monitor.communicate()
