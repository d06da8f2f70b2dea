"""The library from an image volume: what a pod gets, and the nodes that can mount it."""

from typing import Any

import pytest

from isolator_webhook import image_volumes
from isolator_webhook.basis import Basis, Known, NodeSoftware, Unknown
from isolator_webhook.options import LibraryImage, Options

IMAGE = LibraryImage("registry.example/library@sha256:0", "Always")
GATED = LibraryImage("library:1", gate=True)
OPTIONS = Options(library_image=IMAGE)
NEW = NodeSoftware("v1.36.1", "containerd://2.2.0", 3, "new-1")
OLD = NodeSoftware("v1.34.2", "containerd://1.7.27", 2, "old-1")
LIB, PRELOAD = "kai-resource-isolator-lib", "kai-resource-isolator-preload"
PRELOAD_KEY = "kai-resource-isolator.io/preload"


def known(*software: NodeSoftware) -> Known:
    return Known(15360, 15360, software)


def test_the_image_is_mounted_whole_and_the_preload_file_comes_from_the_pod(world: Any) -> None:
    pod = world.admitted(world.a_pod({"gpu-memory": "4096"}), known(NEW), OPTIONS)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes[LIB] == {"name": LIB, "image": {"reference": IMAGE.reference, "pullPolicy": "Always"}}
    (source,) = volumes[PRELOAD]["projected"]["sources"]
    field = f"metadata.annotations['{PRELOAD_KEY}']"
    (item,) = source["downwardAPI"]["items"]
    assert (item["path"], item["fieldRef"]["fieldPath"]) == ("ld.so.preload", field)
    assert pod["metadata"]["annotations"][PRELOAD_KEY] == "/usr/local/vgpu/libvgpu.so\n"
    assert pod["spec"]["containers"][0]["volumeMounts"] == [
        {"name": LIB, "mountPath": "/usr/local/vgpu", "readOnly": True},
        {"name": PRELOAD, "mountPath": "/etc/ld.so.preload", "readOnly": True, "subPath": "ld.so.preload"},
        {"name": "kai-resource-isolator-limits-0", "mountPath": "/usr/local/vgpu/limits", "readOnly": True},
        {"name": "kai-resource-isolator-region-0", "mountPath": "/usr/local/vgpu/containers"},
    ]
    assert "hostPath" not in str(pod["spec"])
    assert "kai-resource-isolator.io/notice" not in pod["metadata"]["annotations"]


def test_another_directory(world: Any) -> None:
    options = Options(library_image=IMAGE, container_dir="/opt/gpu")
    pod = world.admitted(world.a_pod({"gpu-memory": "1"}), known(NEW), options)
    assert pod["metadata"]["annotations"][PRELOAD_KEY] == "/opt/gpu/libvgpu.so\n"
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/opt/gpu"


def test_what_the_author_brought_under_our_names_is_made_right(world: Any) -> None:
    brought = {"gpu-memory": "1", PRELOAD_KEY: "/mine.so"}
    volumes = [
        {"name": LIB, "image": {"reference": "mine", "pullPolicy": "Always"}},
        {"name": PRELOAD, "configMap": {"name": "mine"}},
    ]
    pod = world.admitted(world.a_pod(brought, volumes=volumes), known(NEW), OPTIONS)
    assert pod == world.admitted(pod, known(NEW), OPTIONS)
    assert pod["metadata"]["annotations"][PRELOAD_KEY] == "/usr/local/vgpu/libvgpu.so\n"
    assert pod["spec"]["volumes"][0]["image"]["reference"] == IMAGE.reference
    assert "configMap" not in pod["spec"]["volumes"][1]


@pytest.mark.parametrize("path", ["/usr/local/vgpu", "/usr/local/vgpu/x", "/usr/local", "/etc"])
def test_mounts_in_the_way_of_the_image(world: Any, path: str) -> None:
    container = {"name": "main", "volumeMounts": [{"name": "data", "mountPath": path}]}
    outcome = world.outcome_of(world.a_pod({"gpu-memory": "1"}, containers=[container]), known(NEW), OPTIONS)
    assert (outcome.result, outcome.reason) == ("denied", "conflict")
    assert path in outcome.message


@pytest.mark.parametrize(
    ("kubelet", "runtime", "image", "expected"),
    [
        ("v1.35.0", "containerd://2.1.0", IMAGE, True),
        ("v1.36.1+k3s1", "containerd://2.2.0-k3s1", IMAGE, True),
        ("v1.40.0-eks-1", "cri-o://1.33.0", IMAGE, True),
        ("v2.0.0", "containerd://10.0.0", IMAGE, True),
        ("v1.34.9", "containerd://2.2.0", IMAGE, False),
        ("v1.34.9", "containerd://2.2.0", GATED, True),
        ("v1.31.0", "cri-o://1.33.1", GATED, True),
        ("v1.30.5", "containerd://2.2.0", GATED, False),
        ("v1.36.1", "containerd://2.0.5", IMAGE, False),
        ("v1.36.1", "containerd://1.7.27", IMAGE, False),
        ("v1.36.1", "cri-o://1.32.9", IMAGE, False),
        ("v1.36.1", "docker://28.0.0", IMAGE, False),
        ("v1.36.1", "", IMAGE, False),
        ("", "containerd://2.2.0", IMAGE, False),
        ("v1.36.1", "containerd://unknown", IMAGE, False),
    ],
)
def test_versions(kubelet: str, runtime: str, image: LibraryImage, expected: bool) -> None:
    assert image_volumes.mounts_images(NodeSoftware(kubelet, runtime, 1, "n"), image) is expected


@pytest.mark.parametrize("basis", [known(OLD), Unknown("no memory", (OLD,))])
def test_a_pod_that_no_node_could_start_is_refused(world: Any, basis: Basis) -> None:
    for treatment in ("default", "enforce", "exempt"):
        outcome = world.outcome_of(world.a_pod({"gpu-memory": "1"}), basis, OPTIONS, treatment)
        assert (outcome.result, outcome.reason) == ("denied", "no_image_volumes")
        assert outcome.message == (
            "none of the 2 GPU nodes that this pod can land on mounts images, which bring its library: old-1 runs "
            "kubelet v1.34.2 on containerd://1.7.27; accepted are kubelet 1.35, containerd 2.1 or cri-o 1.33, and later"
        )


def test_nodes_that_could_not_start_the_pod_are_told(world: Any) -> None:
    (notice,) = world.outcome_of(world.a_pod({"gpu-memory": "1"}), known(NEW, OLD), OPTIONS).notices
    assert "does not start on 2 of 5 GPU nodes" in notice
    assert "old-1" in notice


def test_a_notice_is_not_cut_by_the_api_server(world: Any) -> None:
    long = NodeSoftware("v1.34.2-gke.1100000", "containerd://1.7.27-0ubuntu1~22.04", 12, f"gke-{'x' * 40}")
    (notice,) = world.outcome_of(world.a_pod({"gpu-memory": "1"}), known(NEW, long), OPTIONS).notices
    assert len(notice) <= 256


def test_nodes_of_which_nothing_is_known_are_told(world: Any) -> None:
    (notice,) = world.outcome_of(world.a_pod({"gpu-memory": "1"}), Unknown("vramd is away"), OPTIONS).notices
    assert "not known" in notice
    assert "vramd is away" in notice
    assert world.outcome_of(world.a_pod({"gpu-memory": "1"}), known(), OPTIONS).notices != []


def test_files_of_the_node_ask_nothing_of_its_software(world: Any) -> None:
    assert world.outcome_of(world.a_pod({"gpu-memory": "1"}), known(OLD)).notices == []
