"""The monitor on a real API server, with no more rights than it needs: this node's pods, and Events on them."""

import json
import re
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.client import Cluster, Object, wait_until
from tests.cluster.control_plane import ControlPlane

from isolator_testing.processes import dying_with_us, running
from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = pytest.mark.cluster

WAIT_SECONDS = 120.0
UUID = "GPU-11111111-2222-3333-4444-555555555555"
MOUNTS = [
    {"name": "region", "mountPath": "/usr/local/vgpu/libvgpu.so"},
    {"name": "region", "mountPath": "/etc/ld.so.preload"},
    {"name": "region", "mountPath": "/usr/local/vgpu/containers"},
]


def role(name: str) -> Object:
    """What the README says that `serve` needs."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ],
    }


def binding(namespace: str) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "monitor", "namespace": namespace}],
    }


def pod(namespace: str, name: str, node: str, mounts: list[dict[str, str]]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"gpu-memory": "4096"}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none", "volumeMounts": mounts}],
            "volumes": [{"name": "region", "emptyDir": {}}],
        },
    }


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"monitor-test-{secrets.token_hex(4)}"
    with cluster.scratch_namespace(name) as made:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "monitor", "namespace": made}}
        cluster.apply(account, role(made), binding(made))
        yield made
        cluster.delete(binding(made))
        cluster.delete(role(made))


@pytest.fixture
def kubeconfig(cluster: Cluster, namespace: str, tmp_path: Path) -> Path:
    token = cluster.kubectl("create", "token", "monitor", "--namespace", namespace).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output", "json"))
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def url(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[str]:
    command: list[str | Path] = [sys.executable, "-m", "isolator_monitor", "serve"]
    command += ["--kubeconfig", kubeconfig, "--node-name", namespace, "--update-interval", "0.2"]
    command += ["--kubelet-root", tmp_path / "kubelet", "--listen-address", "127.0.0.1", "--listen-port", "0"]
    (tmp_path / "kubelet").mkdir()
    with (
        (tmp_path / "log").open("w") as log,
        running(dying_with_us(command), stderr=log) as process,
    ):

        def port() -> int:
            text = (tmp_path / "log").read_text()
            assert process.poll() is None, text
            events = map(json.loads, text.rpartition("\n")[0].splitlines())
            return next((int(event["port"]) for event in events if event["event"] == "listening"), 0)

        yield f"http://127.0.0.1:{wait_until(port, 'port in the log of the monitor', WAIT_SECONDS)}/metrics"
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


def values(url: str, name: str, *labels: str) -> list[float]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.HTTPError as error:
        error.close()
        return []
    found = (re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line) for line in lines)
    return [float(match[2]) for match in found if match and all(label in (match[1] or "") for label in labels)]


def run_phase(cluster: Cluster, namespace: str, name: str) -> None:
    """Play the kubelet: the pod runs."""
    patch = json.dumps({"status": {"phase": "Running"}})
    cluster.kubectl(
        "patch", "pod", name, "--namespace", namespace, "--subresource", "status", "--type", "merge", "--patch", patch
    )


def events(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    text = cluster.kubectl("get", "events", "--namespace", namespace, "--output", "json")
    found: list[dict[str, Any]] = json.loads(text)["items"]
    return [event for event in found if event["source"].get("component") == "kai-resource-isolator-monitor"]


def test_pods_of_a_real_cluster(
    cluster: Cluster, plane: ControlPlane, namespace: str, url: str, tmp_path: Path
) -> None:
    made = cluster.create(pod(namespace, "shared", namespace, MOUNTS)).ok()
    cluster.create(pod(namespace, "elsewhere", "another-node", MOUNTS)).ok()
    uid = made["metadata"]["uid"]
    volume = tmp_path / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "region"
    image = RegionImage([Card(UUID, 4147 << 20)], {0: Slot(1, [Use(buffer=1 << 30)])})
    cache = write(volume / f"{uid}_main", image.v1())
    with hold(cache.with_name("usage.lock"), [0]):
        used = ("hami_vgpu_memory_used_bytes", f'namespace="{namespace}"')
        wait_until(lambda: values(url, *used) == [1 << 30], "the pod's series", WAIT_SECONDS)
        assert values(url, "isolator_monitor_pods") == [1]

        cluster.create(pod(namespace, "bare", namespace, [])).ok()
        run_phase(cluster, namespace, "bare")
        unprotected = ("isolator_container_unprotected", 'pod="bare"', 'reason="no_mounts"')
        wait_until(lambda: values(url, *unprotected) == [1], "the unprotected pod", WAIT_SECONDS)
        wait_until(lambda: len(events(cluster, namespace)) == 1, "the event", WAIT_SECONDS)
        (event,) = events(cluster, namespace)
        assert (event["reason"], event["type"]) == ("GpuShareNotEnforced", "Warning")
        assert event["involvedObject"]["name"] == "bare"
        described = cluster.kubectl("describe", "pod", "bare", "--namespace", namespace)
        assert "is not held to its GPU share" in described

        # What happens while the API server is away and its history is lost is seen afterwards.
        plane.stop_api_server()
        try:
            wait_until(lambda: values(url, "isolator_monitor_pods_failures_total"), "a failure", WAIT_SECONDS)
            assert values(url, *used) == [1 << 30]
        finally:
            plane.start_api_server()
        cluster.kubectl("delete", "pod", "bare", "shared", "--namespace", namespace, "--force", "--grace-period", "0")
        plane.compact()
        wait_until(lambda: values(url, "isolator_monitor_pods") == [0], "the pods to be gone", WAIT_SECONDS)
        assert values(url, *used) == []
