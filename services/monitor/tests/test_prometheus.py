"""Rules and dashboard against the real Prometheus: what they ask for is there."""

import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from isolator_core import http_server
from isolator_monitor.monitor import Monitor
from isolator_monitor.view import View
from isolator_testing.tools import require

SERVICE = Path(__file__).parents[1]
RULES = SERVICE / "rules" / "kai-resource-isolator.yaml"
DASHBOARDS = sorted((SERVICE / "dashboards").glob("*.json"))
OTHERS = ("isolator_libsync_", "isolator_vramd_", "isolator_webhook_")
"""Metrics of services that the monitor's tests do not run."""
OF_THE_TARGET = {
    "namespace": "isolator", "pod": "monitor-x2k4q", "container": "server", "endpoint": "metrics", "node": "gpu-7"
}  # fmt: skip
"""Labels that every series of a target has by the Prometheus Operator and the chart's ServiceMonitor."""
WAIT_SECONDS = 60.0


def asked_of(rule: dict[str, str]) -> list[str]:
    """The metrics that a rule's expression names."""
    return re.findall(r"\b(?:hami|isolator)_\w+", rule["expr"])


def test_rules() -> None:
    promtool = require("promtool", package="prometheus")
    for command in (["check", "rules", RULES.name], ["test", "rules", "tests.yaml"]):
        done = subprocess.run([promtool, *command], cwd=RULES.parent, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
def prometheus(tmp_path: Path, scene: Callable[[], View]) -> Iterator[str]:
    """A Prometheus that has scraped a monitor several times."""
    program = require("prometheus", package="prometheus")
    monitor = Monitor(scene, 3600.0, legacy=False)
    monitor.update()
    port = free_port()
    with http_server.make_server("127.0.0.1", 0, monitor.answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        target = f"127.0.0.1:{server.server_address[1]}"
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "monitor",
                    "honor_labels": True,
                    "static_configs": [{"targets": [target], "labels": OF_THE_TARGET}],
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        process = subprocess.Popen(
            [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + WAIT_SECONDS
            while not query(url, "count_over_time(isolator_monitor_pods[1m]) > 3"):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(30)
            server.shutdown()


def query(url: str, expression: str) -> list[Any]:
    asked = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=10) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
    except OSError:
        return []


def test_series_are_of_the_pods_that_they_tell_of(prometheus: str, scene: Callable[[], View]) -> None:
    """And not of the monitor's own, which labels of the same names say."""
    shown = {(state.namespace, state.pod) for state in scene().containers}
    for metric in ("hami_vgpu_memory_used_bytes", "isolator_container_unprotected"):
        pods = {(found["metric"]["namespace"], found["metric"]["pod"]) for found in query(prometheus, metric)}
        assert pods
        assert pods <= shown


def expressions() -> list[tuple[str, str]]:
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(panel["title"], target["expr"]) for target in panel["targets"]]
    return found


def test_every_query_of_the_dashboard_gives_something(prometheus: str) -> None:
    assert len(expressions()) > 10
    for title, expression in expressions():
        asked = expression.replace("$namespace", ".*").replace("$pod", ".*")
        assert "$" not in asked
        assert query(prometheus, asked), f"{title}: {asked}"


def test_every_alert_of_the_monitor_asks_for_what_there_is(prometheus: str) -> None:
    """Each rule's metrics exist, so that its silence means that all is well."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    for rule in rules:
        for metric in asked_of(rule):
            if not metric.startswith(OTHERS):
                assert query(prometheus, metric), f"{rule['alert']}: {metric}"
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=10) as answer:
        loaded = json.load(answer)["data"]["groups"][0]["rules"]
    assert {rule["name"] for rule in loaded} == {rule["alert"] for rule in rules}
    assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}


def test_every_alert_of_another_service_asks_for_what_that_service_has() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    asked = {metric for rule in rules for metric in asked_of(rule) if metric.startswith(OTHERS)}
    assert {metric.split("_")[1] for metric in asked} == {"libsync", "vramd", "webhook"}
    for metric in asked:
        source = SERVICE.parent / metric.split("_")[1] / "src"
        # The client library adds `_total` to a counter's name.
        name = f'"{metric.removesuffix("_total")}"'
        assert any(name in path.read_text() for path in source.rglob("metrics.py")), metric


def test_every_alert_is_seen_to_fire() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    cases = yaml.safe_load(RULES.with_name("tests.yaml").read_text())["tests"]
    fired = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}


def test_dashboards_are_whole() -> None:
    assert DASHBOARDS
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(numbers) == len(set(numbers))
        assert board["uid"] == "kai-resource-isolator"
        assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "namespace", "pod"}
