"""The library from an image volume, mounted by a real container runtime."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.containerd import containerd
from tests.containerd.conftest import APPLICATION, BARE, CLIENT, LIBRARY, PAUSE, Node, built, node_of, runtime_of
from tests.containerd.cri import Refused
from tests.containerd.kubelet import Pod
from tests.demo import api_server, kai, site
from tests.node.objects import Json
from tests.node.runtime import Bind

pytestmark = [pytest.mark.containerd, pytest.mark.root]

MIB = 1 << 20
SUCCESS, OUT_OF_MEMORY = 0, 2
VGPU = "/usr/local/vgpu"
SHARE_MIB = 4096
LIMIT_MIB = 4147
"""What KAI makes of the share: it rounds the part of the card up to a hundredth, 0.27 of 15360 MiB."""
LOWER_MIB, LOWER_LIMIT_MIB = 2048, 2150
"""Another share, by the same arithmetic: 0.14 of the card."""
HELD_MIB = 1024

RESTRICTED = {
    "runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
USERS: dict[str, Json] = {"restricted": RESTRICTED, "root": {}}
LIMITS = ("CUDA_DEVICE_MEMORY_LIMIT", "request", "uid")
READ_ONLY = (
    f"{VGPU}/libvgpu.so", f"{VGPU}/new", f"{VGPU}/limits/new", f"{VGPU}/limits/request", "/etc/ld.so.preload",
)  # fmt: skip


def sharing(name: str, security: Json) -> Json:
    """A pod as its author writes it."""
    main = {"name": "main", "image": APPLICATION, "args": ["hold", str(HELD_MIB)], "securityContext": security}
    metadata = {"name": name, "namespace": "team", "annotations": {"gpu-memory": str(SHARE_MIB)}}
    spec = {"schedulerName": "kai-scheduler", "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def reviewed(pod: Json, directory: Path) -> Json:
    """The pod as the webhook makes it, with the API server's defaults."""
    file = directory / "pod.json"
    file.write_text(json.dumps(pod))
    command = [sys.executable, "-m", "isolator_webhook", "review", str(file), "--library", "image"]
    command += ["--library-image", LIBRARY, "--basis-mib", str(site.CARD_MIB), "--output", "pod"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return api_server.defaulted(json.loads(done.stdout))


def bound(node: Node, manifest: Json, directory: Path) -> Json:
    """The pod after admission, ours and KAI's in turn, and after KAI's bind."""
    pod = reviewed(api_server.created(manifest), directory)
    pod = reviewed(kai.admit(pod, hamicore=True), directory)
    return kai.bind(node.api, pod, site.NODE, site.GPU, hamicore=True)


@pytest.fixture(scope="module", params=USERS)
def pod(request: pytest.FixtureRequest, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod that holds some of its share, as the user of a namespace with Pod Security `restricted` and as root."""
    manifest = bound(node, sharing(request.param, USERS[request.param]), tmp_path_factory.mktemp("pod"))
    with node.kubelet.running(manifest) as running:
        node.kubelet.said(running, "main", "MiB")
        yield running


def told(node: Node, pod: Pod) -> Any:
    ended = node.kubelet.run(pod, "main", f"{VGPU}/libvgpu.so", "--json")
    assert (ended.status, ended.errors) == (0, "")
    return json.loads(ended.output)


def test_a_container_is_held_to_its_limit(node: Node, pod: Pod) -> None:
    said = node.kubelet.said(pod, "main", "MiB")
    assert said == f"total {LIMIT_MIB * MIB}\n{HELD_MIB} MiB: {SUCCESS}\n"
    allocated = node.kubelet.run(pod, "main", CLIENT, "2048", "2048")
    assert allocated.output == f"total {LIMIT_MIB * MIB}\n2048 MiB: {SUCCESS}\n2048 MiB: {OUT_OF_MEMORY}\n"


def test_the_library_says_that_it_holds(node: Node, pod: Pod) -> None:
    answer = told(node, pod)
    assert (answer["managed"], answer["refused"], answer["container"]) == (True, None, "main")
    assert answer["directory"] == VGPU
    assert answer["preloaded_by"] == "/etc/ld.so.preload"
    assert answer["request"] == f"memory={SHARE_MIB}m"
    (device,) = answer["devices"]
    assert (device["limit_bytes"], device["limit_from"]) == (LIMIT_MIB * MIB, "limits/CUDA_DEVICE_MEMORY_LIMIT")
    assert device["used_bytes"] >= HELD_MIB * MIB


def options(node: Node, pod: Pod) -> dict[str, list[str]]:
    """Options of each mount in the container."""
    lines = node.kubelet.run(pod, "main", "cat", "/proc/self/mountinfo").output.splitlines()
    return {line.split()[4]: line.split()[5].split(",") for line in lines}


def test_each_mount_is_there_and_only_the_region_is_writable(node: Node, pod: Pod) -> None:
    found = options(node, pod)
    for path in (VGPU, f"{VGPU}/limits", "/etc/ld.so.preload"):
        assert "ro" in found[path], path
    assert "noexec" not in found[VGPU]
    assert "rw" in found[f"{VGPU}/containers"]
    listed = node.kubelet.run(pod, "main", "ls", VGPU, f"{VGPU}/limits").output.split()
    assert listed == [f"{VGPU}:", "containers", "libvgpu.so", "limits", f"{VGPU}/limits:", *LIMITS]


@pytest.mark.parametrize("path", READ_ONLY)
def test_what_caps_cannot_be_changed_from_inside(node: Node, pod: Pod, path: str) -> None:
    for command in (f"echo >>{path}", f"rm {path}" if "new" not in path else f"mkdir {path}", f"mv {path} {path}.old"):
        ended = node.kubelet.run(pod, "main", "sh", "-c", command)
        assert ended.status != 0, command
        if pod.manifest["metadata"]["name"] == "root" and ">>" in command:
            assert "Read-only file system" in ended.errors
    # Nothing of that has changed what is preloaded.
    assert told(node, pod)["preloaded_by"] == "/etc/ld.so.preload"


def test_without_a_share_the_whole_card_is_there(node: Node) -> None:
    """What caps above is the library: the same programs on the same card are not held by anything else."""
    with node.kubelet.running(mounting("free", None)) as pod:
        used = node.kubelet.run(pod, "main", CLIENT, "5000")
        assert used.output == f"total {site.CARD_MIB * MIB}\n5000 MiB: {SUCCESS}\n"


def test_the_region_lies_in_the_pods_own_volume(node: Node, pod: Pod) -> None:
    name = f"{pod.manifest['metadata']['uid']}_main"
    assert told(node, pod)["region"] == f"{VGPU}/containers/{name}/usage.cache"
    (region,) = pod.volume("kai-resource-isolator-region-0").glob("*/usage.cache")
    assert region.parent.name == name


def test_a_changed_share_reaches_the_container_and_a_changed_preload_does_not(node: Node, tmp_path: Path) -> None:
    manifest = bound(node, sharing("changed", RESTRICTED), tmp_path)
    annotations = manifest["metadata"]["annotations"]
    with node.kubelet.running(manifest) as pod:
        node.kubelet.said(pod, "main", "MiB")
        annotations["kai-resource-isolator.io/request.0"] = f"container=main\nmemory={LOWER_MIB}m\ndevices=1\n"
        annotations["kai-resource-isolator.io/preload"] = "/nothing.so\n"
        node.kubelet.sync(pod)
        (device,) = told(node, pod)["devices"]
        assert (device["limit_bytes"], device["limit_from"]) == (LOWER_LIMIT_MIB * MIB, "limits/request")
        assert node.kubelet.run(pod, "main", CLIENT, "2048").output.endswith(f"2048 MiB: {OUT_OF_MEMORY}\n")
        assert node.kubelet.run(pod, "main", "cat", "/etc/ld.so.preload").output == f"{VGPU}/libvgpu.so\n"


def test_a_container_that_starts_again_is_held_again(node: Node, tmp_path: Path) -> None:
    with node.kubelet.running(bound(node, sharing("again", {}), tmp_path)) as pod:
        node.kubelet.said(pod, "main", "MiB")
        node.kubelet.restart(pod, "main")
        assert node.kubelet.run(pod, "main", CLIENT, "5000").output.endswith(f"5000 MiB: {OUT_OF_MEMORY}\n")


def test_containers_of_one_pod_have_the_image_together_and_a_limit_each(node: Node, tmp_path: Path) -> None:
    shares = {"first": 1024, "second": 2048}
    annotations = {f"nvidia.com/container.{name}.gpu-memory.limit": f"{mib}Mi" for name, mib in shares.items()}
    manifest = sharing("two", {})
    manifest["metadata"]["annotations"] = annotations
    manifest["spec"]["containers"] = [
        {"name": name, "image": APPLICATION, "args": ["hold", "512"], "securityContext": RESTRICTED} for name in shares
    ]
    with node.kubelet.running(reviewed(api_server.created(manifest), tmp_path)) as pod:
        for name, mib in shares.items():
            assert node.kubelet.said(pod, name, "MiB") == f"total {mib * MIB}\n512 MiB: {SUCCESS}\n"
            allocated = node.kubelet.run(pod, name, CLIENT, str(mib - 512))
            assert allocated.output.endswith(f"{mib - 512} MiB: {OUT_OF_MEMORY}\n")


def mounting(name: str, sub_path: str | None) -> Json:
    """A pod that mounts the image itself, or a part of it."""
    mount = {"name": "image", "mountPath": "/mounted"} | ({"subPath": sub_path} if sub_path else {})
    volume = {"name": "image", "image": {"reference": LIBRARY}}
    main = {"name": "main", "image": APPLICATION, "args": ["hold"], "volumeMounts": [mount]}
    metadata = {"name": name, "namespace": "team", "annotations": {}}
    spec = {"containers": [main], "volumes": [volume]}
    return api_server.created({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def listed(node: Node, sub_path: str | None) -> list[str]:
    with node.kubelet.running(mounting("parts", sub_path)) as pod:
        return node.kubelet.run(pod, "main", "ls", "/mounted").output.split()


def test_why_the_image_is_mounted_whole(node: Node) -> None:
    assert listed(node, None) == ["containers", "libvgpu.so", "limits"]
    version = node.runtime.cri.runtime("Version", {})["runtime_version"]
    if version.startswith("v2.1."):
        # It knows no part of an image and mounts all of it.
        assert listed(node, "limits") == ["containers", "libvgpu.so", "limits"]
        return
    assert listed(node, "limits") == []
    with pytest.raises(Refused, match="only directory subpath is supported"):
        listed(node, "libvgpu.so")


def test_an_image_without_the_directories_does_not_start_and_is_not_passed_by(node: Node, tmp_path: Path) -> None:
    manifest = bound(node, sharing("bare", {}), tmp_path)
    (volume,) = (one for one in manifest["spec"]["volumes"] if "image" in one)
    volume["image"]["reference"] = BARE
    with (
        pytest.raises(Refused, match=r"StartContainer: .*limits.*read-only file system"),
        node.kubelet.running(manifest),
    ):
        pass


def test_a_runtime_without_image_volumes_does_not_start_the_container(old_node: Node, tmp_path: Path) -> None:
    assert old_node.runtime.cri.runtime("Version", {})["runtime_version"].startswith("1.6.")
    manifest = bound(old_node, sharing("old", {}), tmp_path)
    with pytest.raises(Refused, match=r'CreateContainer: .*failed to mkdir ""'), old_node.kubelet.running(manifest):
        pass


def test_nothing_is_left_of_a_runtime_that_ends_with_pods_in_it(
    served: dict[str, str], card: list[Bind], tmp_path: Path
) -> None:
    with runtime_of(built("2.2"), containerd.CURRENT, served[PAUSE]) as runtime:
        node = node_of(runtime, served, card)
        pod = node.kubelet.start(bound(node, sharing("left", {}), tmp_path))
        node.kubelet.said(pod, "main", "MiB")
        assert containerd.control_groups(runtime.cgroup)
        assert any("image-volumes" in mount for mount in runtime.mounts())
        directory = str(runtime.directory)
    assert directory not in Path("/proc/self/mountinfo").read_text()
    assert containerd.control_groups(runtime.cgroup) == []
    found = [path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [text for text in found if directory in text]
    assert not Path(directory).exists()
