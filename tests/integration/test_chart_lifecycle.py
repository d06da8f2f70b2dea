"""Install, test, upgrade, rollback and uninstall of the chart on the real API server."""

import os
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.client import MERGE_PATCH, Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.load import admissions
from tests.cluster.release import NAME, UMBRELLA, WAIT_SECONDS, Release, certificate_values, installed, upgrade

from isolator_testing.certificates import Authority
from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

SPACE = "isolator-lifecycle"
CONFIGURATION: Object = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": f"{NAME}-mutating"}}
SHARE = {"gpu-memory": "4096"}


@pytest.fixture(scope="module")
def own(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release of these tests alone, which they change in turn."""
    require_root()
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, {}) as release:
        yield release


@pytest.fixture
def restored(own: Release) -> Iterator[Release]:
    """The release, which is put back afterwards as it was installed."""
    yield own
    own.helm("rollback", "1", "--wait", "--timeout=300s")
    # The webhook puts its own authority back within seconds.
    wait_until(lambda: own.cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 201, "the release as it was")


def pod(annotations: dict[str, str] | None = None) -> Object:
    metadata: Object = {"generateName": "p-", "namespace": "default", "annotations": annotations or {}}
    container = {"name": "main", "image": "example.invalid/none"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def admitted(cluster: Cluster, annotations: dict[str, str] | None = None) -> Object:
    return cluster.create(pod(annotations), query={"dryRun": "All"}).ok()


def is_limited(stored: Object) -> bool:
    mounts = stored["spec"]["containers"][0].get("volumeMounts", [])
    return any(mount["mountPath"] == "/etc/ld.so.preload" for mount in mounts)


def test_what_is_installed_is_what_runs(own: Release) -> None:
    printed = own.helm("test")
    assert "Succeeded" in printed
    notes = own.cluster.helm("get", "notes", NAME, "-n", SPACE)
    assert "certificate: made and renewed by the webhook" in notes
    assert f"helm test {NAME} --namespace {SPACE}" in notes
    assert is_limited(admitted(own.cluster, SHARE))
    assert (own.node.root / "var/lib/kai-resource-isolator/libvgpu.so").stat().st_size > 0
    assert (own.node.root / "var/lib/kai-resource-isolator/ld.so.preload").read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert not own.node.failures


def test_the_basis_comes_from_the_clusters_nodes(own: Release) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu", "labels": {"nvidia.com/gpu.memory": "15360"}},
    }
    own.cluster.create(node).ok()
    try:

        def environment() -> dict[str, Any]:
            stored = admitted(own.cluster, {"gpu-fraction": "0.5"})
            return {item["name"]: item.get("value") for item in stored["spec"]["containers"][0]["env"]}

        wait_until(lambda: environment().get("CUDA_DEVICE_MEMORY_LIMIT") == "7680m", "the basis of the new node", 60)
    finally:
        own.cluster.delete(node)


def test_upgrade_by_helm_3_and_rollback(own: Release) -> None:
    cluster = own.cluster
    changed = {"webhook": {"failurePolicy": "Ignore", "podLabels": {"a": "b"}}}
    upgrade(own, changed, "--reuse-values", version=3)
    assert cluster.get(CONFIGURATION).ok()["webhooks"][0]["failurePolicy"] == "Ignore"
    assert is_limited(admitted(cluster, SHARE))
    own.helm("rollback", "1", "--wait", "--timeout=300s")
    assert cluster.get(CONFIGURATION).ok()["webhooks"][0]["failurePolicy"] == "Fail"
    assert is_limited(admitted(cluster, SHARE))


def test_a_rolling_update_refuses_no_pod(own: Release) -> None:
    """Sharing pods are created all through a restart of every webhook."""
    cluster = own.cluster
    before = {item.stored["metadata"]["uid"] for item in own.node.pods("webhook")}
    deployment = {"kind": "Deployment", "metadata": {"name": f"{NAME}-webhook-server", "namespace": SPACE}}
    restart = {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}}

    def replaced() -> bool:
        now = {item.stored["metadata"]["uid"] for item in own.node.pods("webhook")}
        return len(now) == 2 and not now & before

    with admissions(cluster, pod(SHARE), is_limited) as load:
        cluster.call("PATCH", path_of(deployment), restart, content_type=MERGE_PATCH).ok()
        wait_until(replaced, "every webhook replaced", 300)
    assert load.refused == {}
    assert load.admitted > 20


def test_without_the_webhook_only_sharing_pods_are_refused(restored: Release) -> None:
    own, cluster = restored, restored.cluster
    deployment = {"kind": "Deployment", "metadata": {"name": f"{NAME}-webhook-server", "namespace": SPACE}}
    cluster.call("PATCH", path_of(deployment), {"spec": {"replicas": 0}}, content_type=MERGE_PATCH).ok()
    wait_until(lambda: cluster.create(pod(SHARE), query={"dryRun": "All"}).status != 201, "the webhook to be gone")
    refused = cluster.create(pod(SHARE), query={"dryRun": "All"})
    assert refused.status == 500
    assert "vgpu.lib.kai-resource-isolator.io" in refused.message
    admitted(cluster)
    admitted(cluster, {"a": "b"})
    with pytest.raises(AssertionError, match="test"):
        own.helm("test", "--timeout", "60s")

    # With Ignore the API server goes on without the webhook, and the policy refuses the pod that would be unlimited.
    upgrade(own, {"webhook": {"failurePolicy": "Ignore", "replicaCount": 0}}, "--reuse-values")
    wait_until(lambda: cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 403, "the policy's refusal")
    assert "has not the mounts that cap it" in cluster.create(pod(SHARE), query={"dryRun": "All"}).message
    admitted(cluster)


def test_with_a_hanging_webhook_only_sharing_pods_are_refused(own: Release) -> None:
    cluster = own.cluster
    processes = [
        container.main.pid for item in own.node.pods("webhook") for container in item.running.containers.values()
    ]
    assert processes
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        refused = cluster.create(pod(SHARE), query={"dryRun": "All"})
        assert refused.status == 500
        assert "vgpu.lib.kai-resource-isolator.io" in refused.message
        admitted(cluster)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    wait_until(lambda: cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 201, "the webhook's answers")


def test_a_certificate_of_ones_own_and_the_next_one_under_load(restored: Release) -> None:
    """With a wrong authority no pod gets ready and only sharing pods are refused; with the right one they come in."""
    cluster = restored.cluster
    values = certificate_values(cluster, SPACE)
    wrong = values["tls"] | {"caBundle": Authority().certificate.decode()}
    # On the server, where the webhook's own authority is its to change: the README says so.
    take = ("--reuse-values", "--server-side=true", "--force-conflicts")
    restored.helm("upgrade", str(UMBRELLA), *take, values={"tls": wrong})
    told = re.compile(r"the served certificate is not one for [^}]*not_trusted_yet")
    wait_until(lambda: told.search(restored.node.logs()), "the webhook to say that it is not trusted", 300)
    deployment = {"kind": "Deployment", "metadata": {"name": f"{NAME}-webhook-server", "namespace": SPACE}}
    assert cluster.get(deployment).ok()["status"]["unavailableReplicas"] > 0
    wait_until(lambda: "x509" in cluster.create(pod(SHARE), query={"dryRun": "All"}).message, "the refusal")
    admitted(cluster)
    upgrade(restored, values, "--reuse-values")
    wait_until(lambda: cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 201, "the right authority")
    assert is_limited(admitted(cluster, SHARE))

    # Then another one with its authority, in the order that the README gives.
    authority = Authority()
    bundle = authority.certificate.decode()
    issued = authority.issue(f"{NAME}-webhook.{SPACE}.svc")
    secret = {"kind": "Secret", "metadata": {"name": values["tls"]["existingSecret"], "namespace": SPACE}}
    renewed = {"stringData": {"tls.crt": issued.certificate.decode(), "tls.key": issued.key.decode()}}

    def served_by_all() -> bool:
        try:
            with restored.node.plane.network.entered():
                addresses = [(item.network.address, 8443) for item in restored.node.pods("webhook")]
                served = [ssl.get_server_certificate(address, timeout=WAIT_SECONDS) for address in addresses]
        except ConnectionError:
            # One that the upgrade replaces has closed its port and is still ending.
            return False
        wanted = ssl.PEM_cert_to_DER_cert(issued.certificate.decode())
        return all(ssl.PEM_cert_to_DER_cert(pem) == wanted for pem in served)

    with admissions(cluster, pod(SHARE), is_limited) as load:
        both = values["tls"]["caBundle"] + bundle
        upgrade(restored, {"tls": {"caBundle": both}}, "--reuse-values")
        cluster.call("PATCH", path_of(secret), renewed, content_type=MERGE_PATCH).ok()
        wait_until(served_by_all, "the new certificate", 300)
        upgrade(restored, {"tls": {"caBundle": bundle}}, "--reuse-values")
    assert load.refused == {}
    assert load.admitted > 20


UPSTREAM = """
apiVersion: v2
name: kai-resource-isolator
version: 1.1.0-chart
appVersion: 1.1.0
"""


def upstream_like(directory: Path) -> Path:
    """A chart whose objects have the names, and immutable fields, that a release of the upstream chart has."""
    chart = directory / "upstream"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(UPSTREAM)
    labels = {"app": "kai-resource-isolator"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "upstream"}]}}
    metadata = {"name": NAME, "namespace": "{{ .Release.Namespace }}"}
    workload = {"selector": {"matchLabels": labels}, "template": template}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}
    service = {"name": f"{NAME}-webhook", "namespace": "{{ .Release.Namespace }}", "path": "/mutate"}
    webhook = {
        "name": "vgpu.lib.kai-resource-isolator.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Ignore", "timeoutSeconds": 10, "rules": [rule], "clientConfig": {"service": service},
    }  # fmt: skip
    objects: list[Object] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata | {"name": f"{NAME}-webhook"},
         "spec": workload},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata | {"name": f"{NAME}-libsync"},
         "spec": workload},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata | {"name": f"{NAME}-webhook"},
         "spec": {"selector": labels, "ports": [{"name": "https", "port": 443, "targetPort": 8443}]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata | {"name": f"{NAME}-ldpreload"},
         "data": {"ld.so.preload": "/usr/local/vgpu/libvgpu.so"}},
        CONFIGURATION | {"apiVersion": "admissionregistration.k8s.io/v1", "webhooks": [webhook]},
    ]  # fmt: skip
    (chart / "templates" / "all.yaml").write_text(yaml.safe_dump_all(objects))
    return chart


def test_upgrade_from_a_release_shaped_like_upstreams(own: Release, tmp_path: Path) -> None:
    cluster = own.cluster
    values = yaml.safe_load(own.cluster.helm("get", "values", NAME, "-n", SPACE, "-o", "yaml"))
    own.helm("uninstall", "--wait")
    own.helm("install", str(upstream_like(tmp_path)))
    # What upstream's hook job leaves: a Secret that helm does not own.
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-webhook-tls", "namespace": SPACE}}
    cluster.create(secret).ok()
    upgrade(own, values)
    # Refused, not admitted without a limit, until the webhook has put its authority into the configuration.
    wait_until(lambda: cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 201, "the new webhook")
    assert is_limited(admitted(cluster, SHARE))
    kinds = {(item["kind"], item["metadata"]["name"]) for item in own.objects()}
    assert ("Deployment", f"{NAME}-webhook-server") in kinds
    gone = {"kind": "Deployment", "metadata": {"name": f"{NAME}-webhook", "namespace": SPACE}}
    wait_until(lambda: cluster.get(gone).status == 404, "upstream's workload to go")


def test_uninstall_leaves_what_is_documented(own: Release) -> None:
    objects = own.objects()
    assert objects
    own.helm("uninstall", "--wait", "--timeout=300s")
    assert [item["metadata"]["name"] for item in objects if own.cluster.get(item).status != 404] == []
    assert (own.node.root / "var/lib/kai-resource-isolator/libvgpu.so").exists()
    # The API server's view of policies follows a moment later.
    wait_until(lambda: own.cluster.create(pod(SHARE), query={"dryRun": "All"}).status == 201, "the policies to go")
    assert not is_limited(admitted(own.cluster, SHARE))
