"""The webhook's certificate from a real cert-manager: its controller and its injector, as processes."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.cluster import definitions, modules, processes, programs
from tests.cluster.client import MERGE_PATCH, Cluster, Object, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.load import admissions
from tests.cluster.release import NAME, Release, installed

from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.slow]

SPACE = "isolator-cert-manager"
KINDS = ("certificates", "certificaterequests", "issuers", "clusterissuers", "orders", "challenges")
CERTIFICATE = f"/apis/cert-manager.io/v1/namespaces/{SPACE}/certificates/{NAME}-webhook-certificate"
SHARING: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "p-", "namespace": "default", "annotations": {"gpu-memory": "1024"}},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/none"}]},
}


@pytest.fixture(scope="module")
def cert_manager(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """cert-manager on the cluster, for the tests of this module."""
    require_root()
    logs = tmp_path_factory.mktemp("cert-manager")
    paths = [f"deploy/crds/crd-{kind}.yaml" for kind in KINDS]
    with ExitStack() as stack:
        stack.enter_context(definitions.served(cluster, modules.RUNNING_CERT_MANAGER, paths))
        stack.enter_context(cluster.scratch_namespace("cert-manager"))
        for name in ("controller", "cainjector"):
            program = programs.ensure(f"cert-manager-{name}")
            command = [*plane.network.prefix, str(program), f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false"]
            running = processes.start(name, command, logs / f"{name}.log")
            stack.callback(running.stop)
        yield


@pytest.fixture(scope="module")
def own(
    cert_manager: None, cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    del cert_manager
    values = {"tls": {"certManager": {"enabled": True}}}
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, values) as release:
        yield release


def is_limited(stored: Object) -> bool:
    return any(mount["mountPath"] == "/etc/ld.so.preload" for mount in stored["spec"]["containers"][0]["volumeMounts"])


def served(release: Release) -> set[str]:
    """The certificates that the webhook's replicas serve."""
    with release.node.plane.network.entered():
        addresses = [item.network.address for item in release.node.pods("webhook")]
        return {ssl.get_server_certificate((address, 8443)) for address in addresses}


def test_a_certificate_of_cert_manager_is_renewed_under_load(own: Release) -> None:
    cluster = own.cluster
    wait_until(lambda: cluster.create(SHARING, query={"dryRun": "All"}).status == 201, "the injected authority")
    before = served(own)
    assert len(before) == 1
    with admissions(cluster, SHARING, is_limited) as load:
        # As `cmctl renew` does.
        conditions = cluster.call("GET", CERTIFICATE).ok()["status"]["conditions"]
        renew = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by the test"}
        change = {"status": {"conditions": [*conditions, renew]}}
        cluster.call("PATCH", f"{CERTIFICATE}/status", change, content_type=MERGE_PATCH).ok()
        wait_until(lambda: len(served(own)) == 1 and served(own) != before, "the new certificate", 300)
    assert load.refused == {}
    assert load.admitted > 20
