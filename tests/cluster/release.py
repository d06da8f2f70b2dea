"""The chart as a release on the test cluster, its services running from its own pod specs."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.client import Cluster, Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import Node, service_image
from tests.node.runtime import Image

from isolator_testing.certificates import Authority

CHARTS = Path(__file__).parents[2] / "deploy" / "helm"
UMBRELLA = CHARTS / "kai-resource-isolator"
NAME = "kai-resource-isolator"
NAMESPACE = "isolator"
GPU_LABELS = {"nvidia.com/gpu.present": "true"}
SERVICES = ("webhook", "vramd", "libsync", "monitor")
WAIT_SECONDS = 300


def app_version() -> str:
    """Version that the chart's images have by default."""
    return str(yaml.safe_load((UMBRELLA / "Chart.yaml").read_text())["appVersion"])


def images() -> dict[str, Image]:
    """The chart's images by the names that it gives them."""
    return {f"kai-resource-isolator-{name}:{app_version()}": service_image(name) for name in SERVICES}


@dataclass(frozen=True)
class Release:
    """An installed release."""

    cluster: Cluster
    own_node: Node | None
    namespace: str

    @property
    def node(self) -> Node:
        """The node that runs its pods, for tests with a control plane of their own."""
        assert self.own_node is not None
        return self.own_node

    def helm(self, verb: str, *arguments: str, values: Mapping[str, Any] | None = None, version: int = 4) -> str:
        """Run `helm VERB` on this release in its namespace; `values` go into a file of their own."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values or {}, file)
            file.flush()
            given = ["-f", file.name] if values is not None else []
            return self.cluster.helm(verb, NAME, *arguments, "-n", self.namespace, *given, version=version)

    def objects(self) -> list[Object]:
        """What helm says that the release consists of."""
        return [
            item
            for item in yaml.safe_load_all(self.cluster.helm("get", "manifest", NAME, "-n", self.namespace))
            if item
        ]


def upgrade(release: Release, values: Mapping[str, Any], *arguments: str, version: int = 4) -> None:
    """`helm upgrade --install --wait` with the umbrella chart. Raises AssertionError with the containers' logs."""
    wait = ("--wait", f"--timeout={WAIT_SECONDS}s")
    try:
        release.helm("upgrade", str(UMBRELLA), "--install", *wait, *arguments, values=values, version=version)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{release.node.logs()}") from error


@contextmanager
def installed(
    cluster: Cluster, plane: ControlPlane, directory: Path, namespace: str, values: Mapping[str, Any]
) -> Iterator[Release]:
    """A release in a namespace of its own, for the time of a block."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    node_root = directory / "root"
    node_root.mkdir()
    directory.chmod(0o755)
    with (
        cluster.scratch_namespace(namespace, labels),
        Node(cluster, plane, node_root, images(), [namespace], f"node-of-{namespace}", GPU_LABELS) as running,
    ):
        release = Release(cluster, running, namespace)
        upgrade(release, {"monitor": {"enabled": True}, **values})
        try:
            yield release
        finally:
            release.helm("uninstall", "--ignore-not-found", "--wait", f"--timeout={WAIT_SECONDS}s")


def certificate_values(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """A certificate of a test authority as a Secret of the namespace, and the values that name it."""
    authority = Authority()
    issued = authority.issue(f"{NAME}-webhook.{namespace}.svc")
    metadata = {"name": "test-tls", "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata}
    cluster.apply(secret | {"stringData": {"tls.crt": issued.certificate.decode(), "tls.key": issued.key.decode()}})
    return {"tls": {"existingSecret": "test-tls", "caBundle": authority.certificate.decode()}}
