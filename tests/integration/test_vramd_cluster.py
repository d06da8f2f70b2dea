"""vramd on a real API server: with no more rights than it needs, through pages, deletions and a lost history."""

import json
import queue
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.cluster.client import Cluster, Object, wait_until
from tests.cluster.control_plane import ControlPlane

from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_testing.processes import dying_with_us, running

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = pytest.mark.cluster

POOL = "vramd-test"
NODES = 600
WAIT_SECONDS = 120.0


@dataclass
class Vramd:
    """A running `isolator-vramd serve` and what it has logged."""

    process: subprocess.Popen[str]
    lines: "queue.SimpleQueue[dict[str, Any]]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.put(json.loads(text))

    def event(self, **fields: str) -> dict[str, Any]:
        """The next log line with these fields."""
        while True:
            line = self.lines.get(timeout=WAIT_SECONDS)
            if fields.items() <= line.items():
                return line


def node(name: str, mib: int, **labels: str) -> Object:
    gpu = {"nvidia.com/gpu.memory": str(mib), "nvidia.com/gpu.product": "Tesla-T4", "pool": POOL}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"vramd-test-{name}", "labels": gpu | labels}}


ROLE: Object = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "vramd-test"},
    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}],
}


@dataclass(frozen=True)
class Account:
    """A service account that may do nothing until it is given its role, and a kubeconfig of it."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path

    def binding(self) -> Object:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": self.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "vramd-test"},
            "subjects": [{"kind": "ServiceAccount", "name": "vramd", "namespace": self.namespace}],
        }

    def allow(self) -> None:
        self.cluster.apply(ROLE, self.binding())


@pytest.fixture
def account(cluster: Cluster, tmp_path: Path) -> Iterator[Account]:
    name = f"vramd-test-{secrets.token_hex(4)}"
    with cluster.scratch_namespace(name) as namespace:
        cluster.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "vramd", "namespace": namespace}}
        )
        token = cluster.kubectl("create", "token", "vramd", "--namespace", namespace).strip()
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output", "json"))
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        account = Account(cluster, namespace, path)
        yield account
        cluster.delete(account.binding())
        cluster.delete(ROLE)


@pytest.fixture
def vramd(account: Account) -> Iterator[Vramd]:
    command = [sys.executable, "-m", "isolator_vramd", "serve"]
    arguments = [
        "--kubeconfig",
        str(account.kubeconfig),
        "--listen-address",
        "127.0.0.1",
        "--listen-port",
        "0",
        "--metrics-port",
        "0",
    ]
    with running(dying_with_us([*command, *arguments]), stderr=subprocess.PIPE) as process:
        yield Vramd(process)
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0


def test_nodes_of_a_real_cluster(cluster: Cluster, plane: ControlPlane, account: Account, vramd: Vramd) -> None:
    port = vramd.event(event="listening")["port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = vram_pb2_grpc.VramStub(channel)  # type: ignore[no-untyped-call]

        def answer() -> vram_pb2.GetBasisResponse:
            # The cluster may have nodes of others.
            request = vram_pb2.GetBasisRequest(node_selector={"pool": POOL})
            response: vram_pb2.GetBasisResponse = stub.GetBasis(request, timeout=WAIT_SECONDS)
            return response

        def eventually(basis_mib: int, nodes: int, what: str) -> None:
            def seen() -> bool:
                basis = answer().basis
                return (basis.basis_mib, basis.nodes) == (basis_mib, nodes)

            wait_until(seen, what, WAIT_SECONDS)

        assert "nodes is forbidden" in vramd.event(event="source_failed", reason="forbidden")["error"]
        assert answer().unknown.cause == vram_pb2.CAUSE_NOT_READ

        # More than a page of nodes, and then the right to list and watch them, and nothing else.
        manifests = [node(f"n{number:03}", 20000 + number) for number in range(NODES)]
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
        try:
            account.allow()
            eventually(20000, NODES, "all pages of nodes")

            cluster.create(node("small", 15360, zone="a")).ok()
            eventually(15360, NODES + 1, "a node that was added")
            cluster.apply(node("small", 24576, zone="b"))
            eventually(20000, NODES + 1, "a label that was changed")
            term = {"match_expressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
            request = vram_pb2.GetBasisRequest(required_node_affinity={"terms": [term]})
            assert stub.GetBasis(request, timeout=WAIT_SECONDS).basis.basis_mib == 24576
            cluster.delete(manifests[0]).ok()
            eventually(20001, NODES, "a node that was deleted")

            # The history is lost while the API server is away, and with it the watch's place.
            plane.stop_api_server()
            try:
                vramd.event(event="source_failed", reason="connection")
                assert answer().basis.basis_mib == 20001
            finally:
                plane.start_api_server()
            cluster.delete(manifests[1]).ok()
            plane.compact()
            eventually(20002, NODES - 1, "what changed during the restart")
            age = answer().age_seconds
            assert 0 <= age < WAIT_SECONDS
        finally:
            cluster.kubectl("delete", "nodes", "--selector", f"pool={POOL}", "--wait=false")
        wait_until(lambda: answer().unknown.reason, "all nodes to be gone", WAIT_SECONDS)


def test_basis_command_on_a_real_cluster(cluster: Cluster, account: Account) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "isolator_vramd", "basis", "--kubeconfig", str(account.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    denied = run()
    assert denied.returncode == 1
    assert denied.stderr.count("\n") == 1
    assert "403" in denied.stderr
    created = node("only", 40960)
    account.allow()
    cluster.create(created).ok()
    try:
        first: Callable[[], str] = lambda: run("--selector", f"pool={POOL}").stdout.partition("\n")[0]  # noqa: E731
        wait_until(lambda: first() == "basis         40960 MiB", "the role to be seen", WAIT_SECONDS)
    finally:
        cluster.delete(created)
