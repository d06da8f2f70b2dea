"""Pods of a cluster's API server: followed, trusted as far as they are fresh, and told by Events."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isolator_testing.node_api import Fault, NodeApi
from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write

UUID = "GPU-00000000-0000-0000-0000-000000000001"
WAIT_SECONDS = 60
MOUNTS = [
    {"name": "kai-resource-isolator-lib", "mountPath": "/usr/local/vgpu/libvgpu.so"},
    {"name": "kai-resource-isolator-preload", "mountPath": "/etc/ld.so.preload"},
    {"name": "kai-resource-isolator-region-0", "mountPath": "/usr/local/vgpu/containers"},
]
VOLUMES = [
    {"name": "kai-resource-isolator-region-0", "emptyDir": {}},
    {"name": "kai-resource-isolator-limits-0", "projected": {"sources": []}},
]


def pod(name: str, uid: str, mounts: list[dict[str, str]], **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "annotations": {"gpu-memory": "4096", **annotations},
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main", "volumeMounts": mounts}],
            "volumes": VOLUMES,
        },
        "status": {"phase": "Running"},
    }


@pytest.fixture
def api() -> Iterator[NodeApi]:
    with NodeApi(path="/api/v1/pods", bookmark_seconds=0.5).running() as running:
        yield running


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    """The kubelet's directory with the volumes of the pod `u-1`, which holds 1 GiB of 4147 MiB."""
    volumes = tmp_path / "kubelet" / "pods" / "u-1" / "volumes"
    image = RegionImage([Card(UUID, 4147 << 20)], {0: Slot(1, [Use(buffer=1 << 30)])})
    write(volumes / "kubernetes.io~empty-dir" / "kai-resource-isolator-region-0" / "u-1_main", image.v1())
    limits = volumes / "kubernetes.io~projected" / "kai-resource-isolator-limits-0"
    (limits / "..2026").mkdir(parents=True)
    (limits / "..2026" / "request").write_text("container=main\nmemory=4096m\n")
    (limits / "..2026" / "CUDA_DEVICE_MEMORY_LIMIT").write_text("4147m")
    (limits / "..data").symlink_to("..2026")
    return tmp_path / "kubelet"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ISOLATOR_", "NODE_NAME"))}


@contextmanager
def serving(api: NodeApi, tmp_path: Path, *arguments: str | Path) -> Iterator[str]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig("token"))
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", "isolator_monitor", "serve", "--kubeconfig", kubeconfig, "--node-name", "node-1",
         "--listen-address", "127.0.0.1", "--listen-port", "0", "--update-interval", "0.1", *arguments],
        env=environment(),
        stderr=log,
    )  # fmt: skip
    try:
        port = eventually(lambda: next((e["port"] for e in entries(tmp_path) if e["event"] == "listening"), None))
        yield f"http://127.0.0.1:{port}/metrics"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.endswith("}")]


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def values(url: str, name: str, **labels: str) -> list[float]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return []
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


USED, LIMIT = "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"


def test_pods_of_this_node_are_followed(api: NodeApi, tmp_path: Path, kubelet: Path) -> None:
    api.put(pod("a", "u-1", MOUNTS))
    lock = next(kubelet.rglob("usage.lock"))
    with serving(api, tmp_path, "--kubelet-root", kubelet) as url, hold(lock, [0]):
        eventually(lambda: values(url, USED, pod="a") == [1 << 30])
        assert values(url, LIMIT, pod="a") == [4147 << 20]
        assert {request.query["fieldSelector"] for request in api.requests} == {"spec.nodeName=node-1"}
        # A pod that has just been bound has its limit at once, and no use.
        plugin = Path("volumes", "kubernetes.io~projected")
        shutil.copytree(kubelet / "pods" / "u-1" / plugin, kubelet / "pods" / "u-2" / plugin, symlinks=True)
        api.put(pod("b", "u-2", MOUNTS))
        eventually(lambda: values(url, LIMIT, pod="b") == [4147 << 20])
        assert values(url, USED, pod="b") == [0]
        assert values(url, "isolator_monitor_pods") == [2]
        api.delete("a")
        eventually(lambda: values(url, USED, pod="a") == [])
        assert values(url, "isolator_container_unprotected") == []


def test_pods_of_upstreams_chart_keep_their_series(api: NodeApi, tmp_path: Path) -> None:
    """KAI-resource-isolator 1.1 mounts one directory of the host into all of them; its library has no extension."""
    shared = tmp_path / "vgpu" / "containers"
    image = RegionImage([Card(UUID, 4147 << 20)], {0: Slot(1, [Use(buffer=1 << 30)])}, extended=False)
    write(shared / "u-7_main", image.v1())
    old = pod("old", "u-7", [{"name": "vgpu", "mountPath": "/usr/local/vgpu"}])
    old["spec"]["containers"][0]["volumeMounts"] += [
        {"name": "vgpu", "mountPath": "/etc/ld.so.preload", "subPath": "ld.so.preload"},
        {"name": "containers", "mountPath": "/usr/local/vgpu/containers"},
    ]
    old["spec"]["volumes"] = [
        {"name": "vgpu", "hostPath": {"path": "/usr/local/vgpu"}},
        {"name": "containers", "hostPath": {"path": "/usr/local/vgpu/containers"}},
    ]
    api.put(old)
    with serving(api, tmp_path, "--region-root", shared) as url:
        eventually(lambda: values(url, USED, pod="old") == [1 << 30])
        assert values(url, LIMIT, pod="old") == [4147 << 20]
        assert values(url, "isolator_container_unprotected") == []


def test_the_list_is_as_old_as_the_api_servers_last_word(api: NodeApi, tmp_path: Path) -> None:
    with serving(api, tmp_path) as url:
        name = "isolator_monitor_pods_confirmed_timestamp_seconds"
        (first,) = eventually(lambda: values(url, name))
        # Bookmarks confirm it.
        eventually(lambda: values(url, name)[0] > first)
        api.stop()
        eventually(lambda: values(url, "isolator_monitor_pods_failures_total"))
        (stopped,) = values(url, name)
        time.sleep(1)
        assert values(url, name) == [stopped]
        api.start()
        api.put(pod("a", "u-1", []))
        eventually(lambda: values(url, "isolator_monitor_pods") == [1])


def test_without_a_list_there_are_no_metrics(api: NodeApi, tmp_path: Path) -> None:
    api.fail(Fault(403, "pods is forbidden"), times=1000, watch=False)
    with serving(api, tmp_path) as url:
        eventually(lambda: [e for e in entries(tmp_path) if e["event"] == "source_failed"])
        assert values(url, "isolator_monitor_pods") == []
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url.replace("/metrics", "/readyz"), timeout=10)
        assert caught.value.code == 503
        caught.value.close()


def test_unprotected_containers_and_notices_become_events(api: NodeApi, tmp_path: Path) -> None:
    api.put(pod("bare", "u-1", []))
    api.put(pod("noted", "u-2", MOUNTS, **{"kai-resource-isolator.io/notice": "container main: the basis is unknown"}))
    api.posted.append(("/api/v1/namespaces/team/events", {"metadata": {"name": "other"}}))
    with serving(api, tmp_path) as url:
        eventually(lambda: len(api.posted) == 3)
        assert values(url, "isolator_container_unprotected", pod="bare", reason="no_mounts") == [1]
    made = {body["involvedObject"]["name"]: body for path, body in api.posted[1:] if path.endswith("/team/events")}
    assert made["bare"]["reason"] == "GpuShareNotEnforced"
    assert made["bare"]["type"] == "Warning"
    assert made["bare"]["involvedObject"]["uid"] == "u-1"
    assert made["bare"]["source"] == {"component": "kai-resource-isolator-monitor", "host": "node-1"}
    assert "nothing is mounted at /usr/local/vgpu/libvgpu.so" in made["bare"]["message"]
    assert (made["noted"]["reason"], made["noted"]["message"]) == (
        "GpuShareNotice",
        "container main: the basis is unknown",
    )
    said = [entry for entry in entries(tmp_path) if entry["event"] == "container_unprotected"]
    assert [(entry["namespace"], entry["pod"]) for entry in said] == [("team", "bare")]
    # After a restart the same is not said twice.
    with serving(api, tmp_path) as url:
        eventually(lambda: values(url, "isolator_monitor_pods") == [2])
        time.sleep(1)
    assert len(api.posted) == 3


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isolator_monitor", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def test_once_asks_the_api_server(api: NodeApi, tmp_path: Path, kubelet: Path) -> None:
    api.put(pod("a", "u-1", MOUNTS))
    (tmp_path / "kubeconfig").write_text(api.kubeconfig("token"))
    arguments = ("--kubeconfig", tmp_path / "kubeconfig", "--node-name", "node-1", "--kubelet-root", kubelet)
    done = run("once", *arguments)
    assert done.returncode == 0, done.stderr
    assert 'pod="a",vdevice_index="0",zone="vGPU"} 4.348444672e+09' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--node-name (NODE_NAME) is required without --pods-file"),
        (["--node-name", "n"], "not in a pod"),
        (["--node-name", "n"], "give --kubeconfig (ISOLATOR_MONITOR_KUBECONFIG) or --pods-file"),
        (["--node-name", "n", "--kube-context", "c"], "--kube-context is given without --kubeconfig"),
        (["--node-name", "n", "--kubeconfig", "/none"], "--kubeconfig /none"),
        (["--kubeconfig", "/none", "--pods-file", "p"], "one source is accepted"),
    ],
)
def test_wrong_settings(arguments: list[str], words: str) -> None:
    done = run("once", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
