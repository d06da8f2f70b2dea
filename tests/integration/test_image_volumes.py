"""The library from an image volume: a pod that is capped by it, and the real API server with Pod Security beside it."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.images import LIBRARY_FILES
from tests.cluster import client, control_plane, network, programs
from tests.cluster.client import MERGE_PATCH, Cluster, Object, path_of, wait_until
from tests.cluster.release import Release, app_version, installed
from tests.demo import api_server, kai, site
from tests.demo.conversation import Workload
from tests.node.kubelet import Kubelet
from tests.node.objects import Api
from tests.node.requirements import require_containers
from tests.node.runtime import Image

from isolator_testing.tools import require_root

WAIT_SECONDS = 120
IMAGE = "library:1"
NAMESPACE = "isolator-image"
WITHOUT_GATE = (1, 35)
"""From this Kubernetes on the API server stores image volumes without a feature gate."""

NEW = {"kubeletVersion": "v1.36.1", "containerRuntimeVersion": "containerd://2.2.0"}
OLD = {"kubeletVersion": "v1.34.2", "containerRuntimeVersion": "containerd://1.7.27"}
SHARE = {"gpu-memory": "4096"}
PRELOAD = "kai-resource-isolator.io/preload"


def content(directory: Path) -> Image:
    """The library's image as its Dockerfile lays it out."""
    directory.mkdir()
    for name, mode in LIBRARY_FILES.items():
        if stat.S_ISDIR(mode):
            (directory / name).mkdir()
        else:
            shutil.copy(site.LIBRARY, directory / name)
        (directory / name).chmod(stat.S_IMODE(mode))
    return Image(content=directory)


def admitted(manifest: Object, directory: Path) -> Object:
    file = directory / "pod.json"
    file.write_text(json.dumps(manifest))
    command = [sys.executable, "-m", "isolator_webhook", "review", str(file), "--library", "image"]
    command += ["--library-image", IMAGE, "--basis-mib", str(site.CARD_MIB), "--output", "pod"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS)
    return api_server.defaulted(json.loads(done.stdout))


@pytest.mark.root
def test_a_container_is_capped_by_the_library_of_an_image(tmp_path: Path) -> None:
    require_containers()
    pod = api_server.created(yaml.safe_load((site.EXAMPLES / "inference.yaml").read_text()))
    pod = admitted(kai.admit(admitted(pod, tmp_path), hamicore=True), tmp_path)
    assert not [volume for volume in pod["spec"]["volumes"] if "hostPath" in volume]
    api = Api()
    bound = kai.bind(api, pod, site.NODE, site.GPU, hamicore=True)
    images = {container["image"]: site.IMAGE for container in pod["spec"]["containers"]}
    driver = site.install_driver(tmp_path / "driver")
    with Kubelet(tmp_path / "node", api, images | {IMAGE: content(tmp_path / "library")}, driver) as kubelet:
        running = kubelet.start(bound)
        (container,) = running.containers.values()
        workload = Workload("inference", container.main)
        assert workload.visible() == "4147 MiB"
        assert [workload.alloc(3 << 10), workload.alloc(2 << 10)] == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
        regions = list(running.volume("kai-resource-isolator-region-0").glob("*/usage.cache"))
        assert [region.parent.name for region in regions] == [f"{running.uid}_{pod['spec']['containers'][0]['name']}"]
        # The files cannot be changed from inside, and a changed annotation reaches no container that runs.
        script = (
            "cd /usr/local/vgpu; rm libvgpu.so; echo >libvgpu.so; echo >/etc/ld.so.preload; ls; cat /etc/ld.so.preload"
        )
        running.manifest["metadata"]["annotations"][PRELOAD] = "/nothing.so\n"
        kubelet.sync(running)
        _status, output = container.exec(["sh", "-c", script]).communicate(timeout=WAIT_SECONDS)
        assert output.split() == ["containers", "libvgpu.so", "limits", "/usr/local/vgpu/libvgpu.so"]


@contextmanager
def node(cluster: Cluster, name: str, software: dict[str, str]) -> Iterator[None]:
    """A GPU node that runs this software."""
    labels = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.present": "true", "pool": name}
    manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    cluster.create(manifest).ok()
    try:
        status = {"status": {"nodeInfo": software}}
        cluster.call("PATCH", path_of(manifest) + "/status", status, content_type=MERGE_PATCH).ok()
        yield
    finally:
        cluster.delete(manifest)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart with the library from an image, on an API server that has image volumes."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a control plane of its own: a cluster has one release, which has the files of its nodes")
    require_root()
    version = programs.chosen_kubernetes()
    gate = tuple(map(int, version.split("."))) < WITHOUT_GATE
    values = {"volumes": {"library": "image", "imageVolumeGate": gate}, "monitor": {"enabled": False}}
    state, directory = tmp_path_factory.mktemp("plane"), tmp_path_factory.mktemp("node")
    with (
        network.namespace(f"{network.PREFIX}image-{os.getpid()}") as where,
        control_plane.control_plane(state, version, where, ["ImageVolume=true"] if gate else []) as plane,
        client.connect(plane.kubeconfig, version) as cluster,
        installed(cluster, plane, directory, NAMESPACE, values) as running,
    ):
        yield running


def sharing(namespace: str, name: str = "a", **spec: Any) -> Object:
    security = {
        "runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    container = {"name": "main", "image": "example.invalid/none", "securityContext": security}
    metadata = {"name": name, "namespace": namespace, "annotations": dict(SHARE)}
    base = {"schedulerName": "kai-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": base | spec}


@pytest.fixture(scope="module")
def team(release: Release) -> Iterator[str]:
    """A namespace of tenants, once vramd knows of a node that mounts images and one that does not."""
    cluster = release.cluster
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with (
        cluster.scratch_namespace("image-team", labels) as namespace,
        node(cluster, "image-new", NEW),
        node(cluster, "image-old", OLD),
    ):
        asked = sharing(namespace)
        # The node that runs the release reports no versions, so it counts as one that mounts none.
        told = "does not start on 2 of 3 GPU nodes"
        wait_until(
            lambda: any(told in warning for warning in cluster.create(asked, query={"dryRun": "All"}).warnings),
            "vramd to know both nodes",
        )
        yield namespace


@pytest.mark.cluster
@pytest.mark.root
def test_libsync_is_left_out(release: Release) -> None:
    assert [item["metadata"]["name"] for item in release.objects() if item["kind"] == "DaemonSet"] == []


@pytest.mark.cluster
@pytest.mark.root
@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_pod_security_admits_a_pod_with_its_library_from_an_image(release: Release, team: str, level: str) -> None:
    del team
    cluster = release.cluster
    with cluster.scratch_namespace(f"image-{level}", {"pod-security.kubernetes.io/enforce": level}) as namespace:
        stored = cluster.create(sharing(namespace, nodeSelector={"pool": "image-new"})).ok()
        volumes = {volume["name"]: volume for volume in stored["spec"]["volumes"]}
        reference = f"kai-resource-isolator-library:{app_version()}"
        library = volumes["kai-resource-isolator-lib"]["image"]
        assert library == {"reference": reference, "pullPolicy": "IfNotPresent"}
        mounted = {mount["mountPath"]: mount for mount in stored["spec"]["containers"][0]["volumeMounts"]}
        assert mounted["/usr/local/vgpu"]["readOnly"] is True
        assert mounted["/etc/ld.so.preload"]["subPath"] == "ld.so.preload"
        assert stored["metadata"]["annotations"][PRELOAD] == "/usr/local/vgpu/libvgpu.so\n"
        assert "kai-resource-isolator.io/notice" not in stored["metadata"]["annotations"]


@pytest.mark.cluster
@pytest.mark.root
def test_a_pod_for_nodes_that_mount_no_images_is_refused(release: Release, team: str) -> None:
    answer = release.cluster.create(sharing(team, nodeSelector={"pool": "image-old"}))
    assert answer.status == 403
    assert "none of the 1 GPU nodes that this pod can land on mounts images" in answer.message
    assert "image-old runs kubelet v1.34.2 on containerd://1.7.27" in answer.message


@pytest.mark.cluster
@pytest.mark.root
@pytest.mark.parametrize("value", ["/tmp/mine.so\n", None])
def test_what_preloads_the_library_does_not_change(release: Release, team: str, value: str | None) -> None:
    cluster = release.cluster
    manifest = sharing(team, "kept" if value is None else "changed")
    cluster.create(manifest).ok()
    patch = {"metadata": {"annotations": {PRELOAD: value}}}
    answer = cluster.call("PATCH", path_of(manifest), patch, content_type=MERGE_PATCH)
    assert answer.status == 403
    assert f"annotation {PRELOAD}" in answer.message


@pytest.mark.cluster
@pytest.mark.root
def test_an_ephemeral_container_sees_no_gpu(release: Release, team: str) -> None:
    cluster = release.cluster
    manifest = sharing(team, "debugged")
    stored = cluster.create(manifest).ok()
    debug = stored["spec"]["containers"][0] | {"name": "debug", "targetContainerName": "main"}
    debug.pop("volumeMounts")
    stored["spec"]["ephemeralContainers"] = [debug]
    answer = cluster.call("PUT", path_of(manifest) + "/ephemeralcontainers", stored)
    (added,) = answer.ok()["spec"]["ephemeralContainers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in added["env"]
    assert any("comes from an image" in warning for warning in answer.warnings)
