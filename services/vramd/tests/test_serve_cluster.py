"""The program on a cluster's API: ready when it has read, its metrics, a restart of the API server, a clean end."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from isolator_core.proto import vram_pb2
from isolator_testing.node_api import NodeApi, make_node

from .conftest import WAIT_SECONDS, Vramd


@pytest.fixture
def api() -> Iterator[NodeApi]:
    with NodeApi().running() as running:
        yield running


@pytest.fixture
def kubeconfig(api: NodeApi, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig("t"))
    return str(path)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def http(vramd: Vramd, path: str) -> tuple[int, str]:
    port = next(line["metrics_port"] for line in vramd.lines if line["event"] == "listening")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(vramd: Vramd) -> dict[str, float]:
    """Every sample, by its name and labels."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(http(vramd, "/metrics")[1])
        for sample in family.samples
    }


def test_ready_once_the_nodes_were_read(vramd: Callable[..., Vramd], api: NodeApi, kubeconfig: str) -> None:
    api.put(make_node("a", {"nvidia.com/gpu.memory": "15360"}))
    api.hold(True)
    running = vramd("--kubeconfig", kubeconfig)
    stub = running.stub()
    assert stub.GetBasis(vram_pb2.GetBasisRequest()).unknown.cause == vram_pb2.CAUSE_NOT_READ
    assert http(running, "/healthz") == (200, "ok\n")
    assert http(running, "/readyz")[0] == 503
    assert "isolator_vramd_basis_mib" not in samples(running)
    assert samples(running)["isolator_vramd_basis_unknown"] == 1
    with pytest.raises(grpc.RpcError, match="not read yet"):
        list(stub.ListGpuNodes(vram_pb2.ListGpuNodesRequest()))
    api.hold(False)
    eventually(lambda: http(running, "/readyz") == (200, "ok\n"))
    assert stub.GetBasis(vram_pb2.GetBasisRequest()).basis.basis_mib == 15360
    [page] = stub.ListGpuNodes(vram_pb2.ListGpuNodesRequest())
    assert [(n.name, n.memory_mib, n.kubelet_version) for n in page.nodes] == [("a", 15360, "v1.36.1")]
    assert http(running, "/other")[0] == 404
    assert running.stop() == 0


def test_metrics(vramd: Callable[..., Vramd], api: NodeApi, kubeconfig: str) -> None:
    api.put(make_node("a", {"nvidia.com/gpu.memory": "15360"}))
    api.put(make_node("b", {}))
    api.put(make_node("c", {"nvidia.com/gpu.memory": "9", "node-role.kubernetes.io/mig-enabled": "true"}))
    running = vramd("--kubeconfig", kubeconfig)
    eventually(lambda: http(running, "/readyz")[0] == 200)
    stub = running.stub()
    stub.GetBasis(vram_pb2.GetBasisRequest())
    stub.GetBasis(vram_pb2.GetBasisRequest(node_name="b"))
    stream = stub.WatchBasis(vram_pb2.WatchBasisRequest())
    next(stream)
    api.bookmark()
    eventually(lambda: samples(running).get("isolator_vramd_source_events_total,type=BOOKMARK") == 1)
    found = samples(running)
    assert found["isolator_vramd_basis_mib"] == 15360
    assert found["isolator_vramd_basis_unknown"] == 0
    assert 0 <= found["isolator_vramd_source_age_seconds"] < WAIT_SECONDS
    assert found["isolator_vramd_gpu_nodes,memory=known"] == 1
    assert found["isolator_vramd_gpu_nodes,memory=unknown"] == 1
    assert found["isolator_vramd_gpu_nodes,memory=takes_no_share"] == 1
    assert found["isolator_vramd_answers_total,answer=basis"] == 1
    assert found["isolator_vramd_answers_total,answer=no_memory"] == 1
    assert found["isolator_vramd_get_basis_seconds_count"] == 2
    assert found["isolator_vramd_subscribers"] == 1
    assert found["isolator_vramd_source_lists_total"] == 1


def test_api_server_restarts_under_a_subscriber(vramd: Callable[..., Vramd], api: NodeApi, kubeconfig: str) -> None:
    api.put(make_node("a", {"nvidia.com/gpu.memory": "15360"}))
    running = vramd("--kubeconfig", kubeconfig)
    eventually(lambda: http(running, "/readyz")[0] == 200)
    stream = running.stub().WatchBasis(vram_pb2.WatchBasisRequest())
    assert next(stream).basis.basis_mib == 15360
    api.stop()
    line = running.event("source_failed")
    assert (line["reason"], line["service"]) == ("connection", "isolator-vramd")
    api.put(make_node("b", {"nvidia.com/gpu.memory": "8192"}))
    api.compact()
    api.start()
    assert next(stream).basis.basis_mib == 8192
    assert running.stop() == 0
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        next(stream)


def test_ends_cleanly_while_the_api_server_does_not_answer(
    vramd: Callable[..., Vramd], api: NodeApi, kubeconfig: str
) -> None:
    api.hold(True)
    running = vramd("--kubeconfig", kubeconfig)
    eventually(lambda: bool(api.requests))
    assert running.stop() == 0
    assert running.process.stderr is not None
    assert "Traceback" not in running.process.stderr.read()
