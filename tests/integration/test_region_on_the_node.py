"""Regions in a directory of the node: from libsync's directory through admission and kubelet to the monitor's series.

And away again when the pod is gone.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.demo import api_server, site
from tests.demo.conversation import Workload
from tests.node.kubelet import Kubelet
from tests.node.nvidia import STATE
from tests.node.objects import Api, Json
from tests.node.requirements import require_containers
from tests.node.runtime import Process

from isolator_core import names

pytestmark = pytest.mark.root

MIB = 1 << 20
WAIT_SECONDS = 120
SHARES = {"prepare": "1Gi", "main": "2Gi", "side": "3Gi"}
USERS = {"main": 1000, "side": 2000}
ANOTHER = "99999999-2222-3333-4444-555555555555"


def run(program: str, *arguments: str | Path, **environment: str) -> str:
    """What a program of the services prints; raises AssertionError with what it said if it fails."""
    command = [str(Path(sys.executable).with_name(f"isolator-{program}")), *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """A node with a card, on which libsync keeps library and directory of regions."""
    require_containers()
    assert site.LIBRARY.exists(), "run `make -C native/hami-core` first"
    driver = site.install_driver(tmp_path / "driver")
    with Kubelet(tmp_path / "node", Api(), {"image": site.IMAGE}, driver) as kubelet:
        node = kubelet.root / names.HOST_DIR.lstrip("/")
        run("libsync", "once", "--host-dir", node, "--library", site.LIBRARY, "--region-dir")
        smi = [sys.executable, str(site.FAKE_GPU / "nvidia-smi"), "-L"]
        subprocess.run(smi, env={"LD_LIBRARY_PATH": str(driver.directory)}, check=True, capture_output=True)
        for path in (tmp_path / "driver" / STATE).rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (tmp_path / "driver" / STATE).chmod(0o777)
        yield kubelet


def container(name: str) -> Json:
    security = {
        "runAsUser": USERS[name], "runAsGroup": USERS[name], "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
    } if name in USERS else {}  # fmt: skip
    return {
        "name": name,
        "image": "image",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": site.GPU}, {"name": "POD_UID", "value": ANOTHER}],
        "securityContext": security,
    }


def admitted(tmp_path: Path) -> Json:
    """A pod of three containers with a share each, as it is stored; its author wants another's directory."""
    annotations = {f"nvidia.com/container.{name}.gpu-memory.limit": limit for name, limit in SHARES.items()}
    spec = {"initContainers": [container("prepare")], "containers": [container("main"), container("side")]}
    metadata = {"name": "shared", "namespace": "team", "annotations": annotations}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | {"runtimeClassName": "nvidia"}}
    (tmp_path / "pod.json").write_text(json.dumps(api_server.created(pod)))
    arguments = ["--region", "hostPath", "--basis-mib", "15360", "--output", "pod"]
    return api_server.defaulted(json.loads(run("webhook", "review", *arguments, tmp_path / "pod.json")))


def series(kubelet: Kubelet, tmp_path: Path, pod: Json) -> dict[str, float]:
    """Memory used, by container, as the monitor shows it."""
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [pod]}))
    assert kubelet.driver is not None
    text = run(
        "monitor", "once", "--pods-file", tmp_path / "pods.json", "--kubelet-root", kubelet.kubelet_root,
        "--region-root", regions(kubelet), LD_LIBRARY_PATH=str(kubelet.driver.directory),
    )  # fmt: skip
    found = re.findall(r'^hami_vgpu_memory_used_bytes\{.*container="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def regions(kubelet: Kubelet) -> Path:
    return kubelet.root / names.HOST_DIR.lstrip("/") / names.CONTAINERS_DIR


def listed(process: Process) -> list[str]:
    status, output = process.communicate(timeout=WAIT_SECONDS)
    assert status == 0, process.errors.read_text()
    return sorted(output.split())


def test_regions_of_a_pod_in_the_nodes_directory(kubelet: Kubelet, tmp_path: Path) -> None:
    pod = admitted(tmp_path)
    running = kubelet.start(pod)
    workloads = {name: Workload(name, running.containers[name].main) for name in USERS}
    for name, workload in workloads.items():
        limit_mib = int(SHARES[name].removesuffix("Gi")) * 1024
        assert workload.visible() == f"{limit_mib} MiB"
        assert workload.alloc(1024) == "CUDA_SUCCESS"
        assert workload.alloc(limit_mib - 1024) == "CUDA_ERROR_OUT_OF_MEMORY"

    # Each container has its own, by the pod's real UID; none is left beside it and none can be seen from within.
    assert sorted(path.name for path in regions(kubelet).iterdir()) == sorted(
        f"{running.uid}_{name}" for name in SHARES
    )
    own = ["usage.cache", "usage.lock"]
    for name in SHARES:
        assert sorted(path.name for path in (regions(kubelet) / f"{running.uid}_{name}").iterdir()) == own
    for name in USERS:
        inside = f"{names.CONTAINER_DIR}/{names.CONTAINERS_DIR}"
        assert listed(running.containers[name].exec(["ls", "-A", inside])) == own
    used = series(kubelet, tmp_path, pod)
    assert {name: value >= 1024 * MIB for name, value in used.items()} == {"prepare": False, "main": True, "side": True}

    # A container that starts anew goes on in its region; what its predecessor held is given back.
    region = regions(kubelet) / f"{running.uid}_main" / names.REGION_FILE
    before = region.stat().st_ino
    again = Workload("main", kubelet.restart(running, "main").main)
    assert again.alloc(1536) == "CUDA_SUCCESS"
    assert region.stat().st_ino == before

    (kubelet.kubelet_root / "pods" / ANOTHER).mkdir()
    clean = ("clean", "--once", "--least-age", "0", "--region-root", regions(kubelet))
    run("monitor", *clean, "--kubelet-root", kubelet.kubelet_root)
    assert region.exists()
    kubelet.stop(running)
    run("monitor", *clean, "--kubelet-root", kubelet.kubelet_root)
    assert list(regions(kubelet).iterdir()) == []


def test_a_pod_waits_for_the_directory_of_regions(kubelet: Kubelet, tmp_path: Path) -> None:
    """Made by anyone but libsync it would be closed to all users but root."""
    regions(kubelet).rmdir()
    with pytest.raises(Exception, match=r"hostPath type check failed: .*/containers is not a directory"):
        kubelet.start(admitted(tmp_path))
    assert not regions(kubelet).exists()
