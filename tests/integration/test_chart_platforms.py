"""What some clusters need of the chart: an autoscaler, the node's network, a quota for priorities."""

import datetime
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cluster import control_plane, https, programs
from tests.cluster.client import Cluster, Object, connect, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import GPU_LABELS, NAME, UMBRELLA, Release, installed, upgrade

from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = pytest.mark.cluster

SPACE = "isolator-platforms"
WEBHOOK: Object = {"kind": "Deployment", "metadata": {"name": f"{NAME}-webhook-server", "namespace": SPACE}}
VRAMD: Object = {"kind": "Deployment", "metadata": {"name": f"{NAME}-vramd", "namespace": SPACE}}
AUTOSCALED = {"webhook": {"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 2}}}
METRICS = "/apis/metrics.k8s.io/v1beta1"
DISCOVERY: Object = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "metrics.k8s.io/v1beta1",
    "resources": [{"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}],
}


@pytest.fixture(scope="module")
def own(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release with autoscaling, which these tests change in turn."""
    require_root()
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, AUTOSCALED) as release:
        yield release


def metrics(cluster: Cluster, cpu: str) -> https.Answer:
    """What a metrics API answers in which every container of every pod uses `cpu`."""

    def answer(asked: str, _body: Object) -> Object:
        path, _, query = asked.partition("?")
        if path == METRICS:
            return DISCOVERY
        namespace = path.removeprefix(f"{METRICS}/namespaces/").partition("/")[0]
        wanted = dict(urllib.parse.parse_qsl(query))
        listed = cluster.call("GET", f"/api/v1/namespaces/{namespace}/pods", query=wanted).ok()["items"]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        usage = {"cpu": cpu, "memory": "64Mi"}
        items = [
            {
                "metadata": {key: item["metadata"].get(key, {}) for key in ("name", "namespace", "labels")},
                "timestamp": now,
                "window": "1s",
                "containers": [{"name": container["name"], "usage": usage} for container in item["spec"]["containers"]],
            }
            for item in listed
        ]
        return {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}

    return answer


@contextmanager
def metrics_api(cluster: Cluster, plane: ControlPlane, directory: Path, cpu: str) -> Iterator[None]:
    """The resource metrics API, which autoscalers read, for the time of a block."""
    address, space = plane.network.address, {"namespace": "metrics-api"}
    with ExitStack() as stack:
        host = "metrics.metrics-api.svc"
        served = stack.enter_context(https.serving(plane.network, address, host, directory, metrics(cluster, cpu)))
        service = {"apiVersion": "v1", "kind": "Service", "metadata": space | {"name": "metrics"}}
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": space | {"name": "metrics", "labels": {"kubernetes.io/service-name": "metrics"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": served.port, "protocol": "TCP"}],
        }
        collection = "/apis/apiregistration.k8s.io/v1/apiservices"
        api = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": space | {"name": "metrics", "port": 443},
                "caBundle": served.ca_bundle,
            },
        }  # fmt: skip
        stack.enter_context(cluster.scratch_namespace("metrics-api"))
        ports = [{"name": "https", "port": 443, "targetPort": served.port}]
        cluster.create(service | {"spec": {"ports": ports}}).ok()
        cluster.create(endpoints).ok()
        cluster.call("POST", collection, api).ok()
        stack.callback(cluster.call, "DELETE", f"{collection}/v1beta1.metrics.k8s.io")
        wait_until(lambda: cluster.call("GET", f"{METRICS}/namespaces/{SPACE}/pods").status == 200, "the metrics API")
        yield


@pytest.mark.root
def test_an_autoscaler_scales_the_webhook(own: Release, plane: ControlPlane, tmp_path: Path) -> None:
    """Four times the CPU that is asked for: as many replicas as are allowed, and each of them serves."""
    cluster = own.cluster
    assert cluster.get(WEBHOOK).ok()["spec"]["replicas"] == 1
    with metrics_api(cluster, plane, tmp_path, "200m"):
        wait_until(lambda: cluster.get(WEBHOOK).ok()["status"].get("readyReplicas") == 2, "a second replica", 300)
    # An upgrade leaves the number to the autoscaler.
    upgrade(own, {"webhook": {"podLabels": {"a": "b"}}}, "--reuse-values")
    assert cluster.get(WEBHOOK).ok()["spec"]["replicas"] == 2


@pytest.mark.root
def test_in_the_nodes_network(own: Release) -> None:
    """One node has one place for the webhook's port: a rolling update comes to an end all the same."""
    cluster = own.cluster
    chosen = {"autoscaling": {"enabled": False}, "replicaCount": 1, "hostNetwork": True, "port": 18443}
    upgrade(own, {"webhook": chosen | {"metricsPort": 19396}}, "--reuse-values")
    before = own.node.only_pod("webhook")
    assert before.stored["status"]["podIP"] == own.node.plane.network.address
    assert_served(cluster)
    upgrade(own, {"webhook": {"podLabels": {"c": "d"}}}, "--reuse-values")
    after = own.node.only_pod("webhook")
    assert before.stored["metadata"]["uid"] != after.stored["metadata"]["uid"]
    assert_served(cluster)


SHARING: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "p-", "namespace": "default", "annotations": {"gpu-memory": "1024"}},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/none"}]},
}


def admitted(cluster: Cluster) -> Object:
    return cluster.create(SHARING, query={"dryRun": "All"}).ok()


def assert_served(cluster: Cluster) -> None:
    """The API server learns a little later where a new webhook is."""
    wait_until(lambda: cluster.create(SHARING, query={"dryRun": "All"}).status == 201, "the new webhook's answers")
    assert is_limited(admitted(cluster))


def is_limited(stored: Object) -> bool:
    return any(mount["mountPath"] == "/etc/ld.so.preload" for mount in stored["spec"]["containers"][0]["volumeMounts"])


PRIORITIES_BY_QUOTA: Object = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [
                            {
                                "scopeName": "PriorityClass",
                                "operator": "In",
                                "values": ["system-node-critical", "system-cluster-critical"],
                            }
                        ],
                    }
                ],
            },
        }
    ],
}
"""Kubernetes' documentation, "Limit Priority Class consumption by default"; GKE's API servers are set so."""


@pytest.fixture(scope="module")
def strict(own_control_plane: ControlPlane | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Another cluster, which admits system priorities only where a quota speaks of them, with one node by name."""
    if own_control_plane is None:
        pytest.skip("needs a control plane of its own, not the cluster of KUBECONFIG")
    directory = tmp_path_factory.mktemp("strict")
    version = programs.chosen_kubernetes()
    with (
        control_plane.control_plane(directory, version, admission=PRIORITIES_BY_QUOTA) as plane,
        connect(plane.kubeconfig, version) as cluster,
    ):
        cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu", "labels": GPU_LABELS}}).ok()
        yield cluster


def test_a_quota_lets_system_priorities_in(strict: Cluster) -> None:
    with strict.scratch_namespace("with") as namespace:
        strict.helm("install", NAME, str(UMBRELLA), "-n", namespace, "--set", "monitor.enabled=true")
        wait_until(lambda: all_pods_are_there(strict, namespace), "a pod of every workload")
        strict.helm("uninstall", NAME, "-n", namespace)


def test_without_the_quota_they_are_refused(strict: Cluster) -> None:
    with strict.scratch_namespace("without") as namespace:
        strict.helm("install", NAME, str(UMBRELLA), "-n", namespace, "--set", "priorityQuota.create=false")
        webhook = WEBHOOK | {"metadata": WEBHOOK["metadata"] | {"namespace": namespace}}

        def refusals() -> list[str]:
            conditions = strict.get(webhook).ok().get("status", {}).get("conditions", [])
            return [item["message"] for item in conditions if item["type"] == "ReplicaFailure"]

        (message,) = wait_until(refusals, "the refusal")
        assert "insufficient quota to match these scopes" in message
        strict.helm("uninstall", NAME, "-n", namespace)


def all_pods_are_there(cluster: Cluster, namespace: str) -> bool:
    pods: Object = {"kind": "Pod", "metadata": {"namespace": namespace}}
    found = cluster.call("GET", path_of(pods, named=False)).ok()["items"]
    parts = sorted(item["metadata"]["labels"]["app.kubernetes.io/component"] for item in found)
    return parts == ["libsync", "monitor", "vramd", "webhook", "webhook"]
