"""The program as a process: what a client gets, what a file's change does, how it ends."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from isolator_core.proto import vram_pb2

from .conftest import WAIT_SECONDS, Vramd

NODES = """
kind: NodeList
apiVersion: v1
items:
- kind: Node
  metadata: {name: t4, labels: {nvidia.com/gpu.memory: "15360", pool: small}}
- metadata: {name: a100, labels: {nvidia.com/gpu.memory: "42949672960", pool: big}}
- metadata: {name: broken, labels: {nvidia.com/gpu.present: "true", pool: broken}}
- metadata: {name: cpu, labels: {pool: none}}
"""


@pytest.fixture
def nodes_file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.yaml"
    path.write_text(NODES)
    return path


def get(vramd: Vramd, **request: object) -> vram_pb2.GetBasisResponse:
    return vramd.stub().GetBasis(vram_pb2.GetBasisRequest(**request), timeout=WAIT_SECONDS)


def test_smallest_gpu_of_the_file(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    basis = get(running).basis
    assert (basis.basis_mib, basis.nodes, basis.source) == (15360, 2, vram_pb2.SOURCE_NODES)


def test_constraints_narrow_the_nodes(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    assert get(running, node_selector={"pool": "big"}).basis.basis_mib == 40960
    assert get(running, node_name="a100").basis.basis_mib == 40960
    term = {"match_expressions": [{"key": "pool", "operator": "NotIn", "values": ["small"]}]}
    assert get(running, required_node_affinity={"terms": [term]}).basis.basis_mib == 40960
    assert "none of 3 GPU nodes takes shares and satisfies" in get(running, required_node_affinity={}).unknown.reason
    assert "broken: label nvidia.com/gpu.memory is missing" in get(running, node_name="broken").unknown.reason


def test_override_wins(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file), PER_GPU_VRAM_MIB="24576")
    basis = get(running, node_name="cpu").basis
    assert (basis.basis_mib, basis.nodes, basis.source) == (24576, 0, vram_pb2.SOURCE_OVERRIDE)


def test_health_says_serving(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    stub = health_pb2_grpc.HealthStub(running.channel())  # type: ignore[no-untyped-call]
    for service in ("", "isolator.vram.v1.Vram"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def test_change_of_the_file_is_followed(vramd: Callable[..., Vramd], nodes_file: Path, tmp_path: Path) -> None:
    # As the kubelet publishes a ConfigMap: a link is replaced.
    link = tmp_path / "link.yaml"
    link.symlink_to(nodes_file)
    running = vramd("--nodes-file", str(link))
    other = tmp_path / "other.yaml"
    other.write_text(NODES.replace("15360", "8192"))
    (tmp_path / "next").symlink_to(other)
    (tmp_path / "next").rename(link)
    eventually(lambda: get(running).basis.basis_mib == 8192)
    other.write_text("items: []\nkind: NodeList\n")
    eventually(lambda: get(running).unknown.reason == "there is no GPU node that takes shares")


def test_wrong_change_keeps_the_last_nodes(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    nodes_file.write_text("kind: Pod\n")
    assert "kind is 'Pod'" in running.event("nodes_file_refused")["error"]
    nodes_file.unlink()
    assert "No such file" in running.event("nodes_file_refused")["error"]
    assert get(running).basis.basis_mib == 15360
    nodes_file.write_text(NODES.replace("15360", "8192"))
    eventually(lambda: get(running).basis.basis_mib == 8192)


def test_log_tells_the_basis_and_who_says_nothing(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    line = running.event("basis")
    assert (line["basis_mib"], line["gpu_nodes"], line["heterogeneous"]) == (15360, 3, True)
    assert (line["nodes_without_memory"], line["for_example"]) == (1, "broken")
    nodes_file.write_text("{kind: NodeList, items: []}")
    line = running.event("basis_unknown")
    assert (line["level"], line["reason"]) == ("warning", "there is no GPU node that takes shares")


def test_sigterm_ends_cleanly(vramd: Callable[..., Vramd], nodes_file: Path) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    assert get(running).basis.basis_mib == 15360
    assert running.stop() == 0


def test_port_in_use_is_said(
    vramd: Callable[..., Vramd], nodes_file: Path, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    running = vramd("--nodes-file", str(nodes_file))
    port = str(running.port)
    done = command("serve", "--nodes-file", str(nodes_file), "--listen-address", "127.0.0.1", "--listen-port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        running.channel().unary_unary("/isolator.vram.v1.Vram/Nothing")(b"", timeout=WAIT_SECONDS)
