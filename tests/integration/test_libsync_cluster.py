"""libsync on a real API server: the node's label and condition, and the pods that hold up an uninstall."""

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.client import Cluster, Object, wait_until

from isolator_testing import tools
from isolator_testing.processes import dying_with_us, running

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = pytest.mark.cluster

WAIT_SECONDS = 120.0
LABEL = "kai-resource-isolator.io/ready"
CONDITION = "KaiResourceIsolatorReady"
PROGRAM = (sys.executable, "-m", "isolator_libsync")


@dataclass(frozen=True)
class Site:
    """A node of the cluster, and a service account with the rights that its rules give."""

    cluster: Cluster
    namespace: str
    node: str
    host_dir: Path
    library: Path
    flags: tuple[str, ...]

    def allow(self, *rules: Object) -> None:
        """Give the service account these rights and no others."""
        kind = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{kind}/v1", "kind": "ClusterRole", "metadata": {"name": self.namespace}}
        subject = {"kind": "ServiceAccount", "name": "libsync", "namespace": self.namespace}
        binding = {
            "apiVersion": f"{kind}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": self.namespace},
            "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": self.namespace},
            "subjects": [subject],
        }
        self.cluster.apply({**role, "rules": list(rules)}, binding)

    def observed(self) -> Object:
        return json.loads(self.cluster.kubectl("get", "node", self.node, "--output", "json"))  # type: ignore[no-any-return]

    def label(self) -> str | None:
        value: str | None = self.observed()["metadata"].get("labels", {}).get(LABEL)
        return value

    def condition(self) -> dict[str, str]:
        conditions = self.observed()["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == CONDITION), {})

    def pod(self, name: str, path: Path) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": "main", "image": "none"}],
                "volumes": [{"name": "lib", "hostPath": {"path": str(path), "type": "File"}}],
            },
        }

    def run(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [*PROGRAM, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    def keep(self) -> tuple[str, ...]:
        owner = f"{os.geteuid()}:{os.getegid()}"
        return ("--host-dir", str(self.host_dir), "--library", str(self.library), "--owner", owner)


NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
NODE_STATUS = {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    name = f"libsync-test-{secrets.token_hex(4)}"
    compiler = tools.require("cc", package="gcc")
    source, library = tmp_path / "library.c", tmp_path / "libvgpu.so"
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"other": "stays"}}}
    with cluster.scratch_namespace(name) as namespace:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "libsync", "namespace": namespace},
        }
        cluster.apply(account, node)
        token, ca = tmp_path / "token", tmp_path / "ca.crt"
        token.write_text(cluster.kubectl("create", "token", "libsync", "--namespace", namespace))
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output", "json"))
        server = config["clusters"][0]["cluster"]
        ca.write_bytes(base64.b64decode(server["certificate-authority-data"]))
        api = ("--api-server", server["server"], "--api-token-file", str(token), "--api-ca-file", str(ca))
        yield Site(cluster, namespace, name, tmp_path / "node", library, (*api, "--node-name", name))
        cluster.kubectl("delete", "node", name, "--wait=false")
        for kind in ("clusterrolebinding", "clusterrole"):
            cluster.kubectl("delete", kind, name, "--ignore-not-found")


@contextlib.contextmanager
def service(site: Site, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    command = [
        *PROGRAM,
        "run",
        *site.keep(),
        *site.flags,
        "--listen-address",
        "127.0.0.1",
        "--listen-port",
        "0",
        *flags,
    ]
    with running(dying_with_us(command), stderr=subprocess.DEVNULL) as process:
        yield process
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


def test_label_and_condition_follow_the_node(site: Site) -> None:
    with service(site, "--node-label", LABEL, "--node-condition", CONDITION):
        # Without rights the node stays unmarked; they come later, as RBAC may.
        site.allow(NODES, NODE_STATUS)
        wait_until(lambda: site.label() == "true", "the label", WAIT_SECONDS)
        wait_until(lambda: site.condition().get("status") == "True", "the condition", WAIT_SECONDS)
        since = site.condition()["lastTransitionTime"]
        assert site.observed()["metadata"]["labels"]["other"] == "stays"
        # Damage that is repaired at once leaves the mark as it is.
        (site.host_dir / "libvgpu.so").unlink()
        wait_until(lambda: (site.host_dir / "libvgpu.so").exists(), "the repair", WAIT_SECONDS)
        assert site.condition()["lastTransitionTime"] == since
    assert site.label() == "true"
    assert site.run("uninstall", "--host-dir", site.host_dir, "--force", *site.flags, "--node-label", LABEL,
                    "--node-condition", CONDITION).returncode == 0  # fmt: skip
    assert site.label() is None
    assert site.condition() == {}


def test_a_node_that_cannot_be_made_right_says_why(site: Site) -> None:
    site.allow(NODES, NODE_STATUS)
    site.host_dir.mkdir()
    (site.host_dir / "containers").write_text("in the way")
    with service(site, "--node-label", LABEL, "--node-condition", CONDITION, "--region-dir"):
        wait_until(lambda: site.condition().get("status") == "False", "the condition", WAIT_SECONDS)
        assert site.label() == "false"
        assert "cannot make the directory: Not a directory" in site.condition()["message"]
        (site.host_dir / "containers").unlink()
        wait_until(lambda: site.condition().get("status") == "True", "the condition once right", WAIT_SECONDS)
        wait_until(lambda: site.label() == "true", "the label once right", WAIT_SECONDS)


def test_the_label_alone_needs_no_right_on_the_status(site: Site) -> None:
    site.allow(NODES)
    with service(site, "--node-label", LABEL):
        wait_until(lambda: site.label() == "true", "the label", WAIT_SECONDS)


def test_uninstall_waits_for_the_pods_of_the_node(site: Site) -> None:
    assert site.run("once", *site.keep()).returncode == 0
    remove = ("uninstall", "--host-dir", site.host_dir, *site.flags)
    denied = site.run(*remove)
    assert denied.returncode == 1
    assert "403 Forbidden" in denied.stderr
    assert (site.host_dir / "libvgpu.so").exists()
    site.allow(PODS)
    site.cluster.create(site.pod("other", Path("/etc/hostname"))).ok()
    site.cluster.create(site.pod("trainer", site.host_dir / "libvgpu.so")).ok()
    wait_until(lambda: "403" not in (site.run(*remove).stderr), "the right to be seen", WAIT_SECONDS)
    refused = site.run(*remove)
    assert refused.returncode == 1
    assert f"pods of this node mount the files: {site.namespace}/trainer;" in refused.stderr
    assert (site.host_dir / "libvgpu.so").exists()
    site.cluster.kubectl("delete", "pod", "trainer", "--namespace", site.namespace, "--force", "--grace-period=0")
    done = site.run(*remove)
    assert done.returncode == 0, done.stderr
    assert not site.host_dir.exists()
