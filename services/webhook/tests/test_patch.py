"""The patch, applied: what a pod looks like afterwards, in either order with KAI, and twice."""

from typing import Any

import pytest

from isolator_webhook.basis import Known, Unknown
from isolator_webhook.options import Options

OURS = (
    "kai-resource-isolator-lib",
    "kai-resource-isolator-preload",
    "kai-resource-isolator-limits-0",
    "kai-resource-isolator-region-0",
)
MOUNTS = [
    {"name": OURS[0], "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True},
    {"name": OURS[1], "mountPath": "/etc/ld.so.preload", "readOnly": True},
    {"name": OURS[2], "mountPath": "/usr/local/vgpu/limits", "readOnly": True},
    {"name": OURS[3], "mountPath": "/usr/local/vgpu/containers"},
]


def env_of(pod: Any, container: int = 0) -> dict[str, Any]:
    return {entry["name"]: entry for entry in pod["spec"]["containers"][container].get("env", ())}


def volumes_of(pod: Any) -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


def limits_sources(pod: Any, index: str = "0") -> list[Any]:
    sources: list[Any] = volumes_of(pod)[f"kai-resource-isolator-limits-{index}"]["projected"]["sources"]
    return sources


def test_memory(world: Any) -> None:
    pod = world.admitted(world.a_pod({"gpu-memory": "4096"}))
    assert pod["metadata"]["annotations"] == {
        "gpu-memory": "4096",
        "kai-resource-isolator.io/request.0": "container=main\nmemory=4096m\ndevices=1\n",
    }
    assert pod["spec"]["containers"] == [
        {
            "name": "main",
            "image": "pytorch",
            "volumeMounts": MOUNTS,
            "env": [
                {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                {"name": "CONTAINER_NAME", "value": "main"},
                {"name": "CONTAINER_VGPU_MOUNT", "value": "/usr/local/vgpu"},
                {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "4096m"},
            ],
        }
    ]
    items = [
        {
            "path": "request",
            "fieldRef": {"fieldPath": "metadata.annotations['kai-resource-isolator.io/request.0']"},
        },
        {"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}},
    ]
    host = "/var/lib/kai-resource-isolator"
    assert pod["spec"]["volumes"] == [
        {"name": OURS[0], "hostPath": {"path": f"{host}/libvgpu.so", "type": "File"}},
        {"name": OURS[1], "hostPath": {"path": f"{host}/ld.so.preload", "type": "File"}},
        {"name": OURS[2], "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
        {"name": OURS[3], "emptyDir": {"sizeLimit": "16Mi"}},
    ]


@pytest.mark.parametrize(
    ("fraction", "basis", "limit"),
    [("0.25", 15360, "3840m"), ("0.5", 15360, "7680m"), ("0.29", 100, "29m"), ("0.333", 15360, "5114m"),
     ("1e-9", 15360, "1m"), ("0.99999999999999989", 2**40, "1099511627775m")],
)  # fmt: skip
def test_fraction_takes_the_basis(world: Any, fraction: str, basis: int, limit: str) -> None:
    pod = world.admitted(world.a_pod({"gpu-fraction": fraction}), Known(basis, basis))
    assert env_of(pod)["CUDA_DEVICE_MEMORY_LIMIT"]["value"] == limit


def test_memory_beyond_64_bits_of_bytes(world: Any) -> None:
    pod = world.admitted(world.a_pod({"gpu-memory": "18446744073709551615"}))
    limit = env_of(pod)["CUDA_DEVICE_MEMORY_LIMIT"]["value"]
    assert int(limit.removesuffix("m")) << 20 < 2**64 <= (int(limit.removesuffix("m")) + 1) << 20


def test_unknown_basis_costs_a_warning_and_not_the_cap(world: Any) -> None:
    pod = world.a_pod({"gpu-fraction": "0.25"})
    outcome = world.outcome_of(pod, Unknown("no GPU node"))
    assert outcome.result == "patched"
    (notice,) = outcome.notices
    assert "main" in notice
    assert "no GPU node" in notice
    after = world.admitted(pod, Unknown("no GPU node"))
    assert after["metadata"]["annotations"]["kai-resource-isolator.io/notice"] == notice
    assert (
        after["metadata"]["annotations"]["kai-resource-isolator.io/request.0"]
        == "container=main\nfraction=0.25\ndevices=1\n"
    )
    assert after["spec"]["containers"][0]["volumeMounts"] == MOUNTS
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in env_of(after)


def test_only_the_fraction_container_is_touched(world: Any) -> None:
    pod = world.a_pod(
        {"gpu-memory": "1024", "gpu-fraction-container-name": "train", "gpu-fraction-num-devices": "2"},
        initContainers=[{"name": "prepare"}],
        containers=[{"name": "side", "env": [{"name": "A", "value": "1"}]}, {"name": "train"}],
    )
    after = world.admitted(pod)
    assert after["spec"]["initContainers"] == pod["spec"]["initContainers"]
    assert after["spec"]["containers"][0] == pod["spec"]["containers"][0]
    assert [mount["name"] for mount in after["spec"]["containers"][1]["volumeMounts"]][2:] == [
        "kai-resource-isolator-limits-1",
        "kai-resource-isolator-region-1",
    ]
    assert (
        after["metadata"]["annotations"]["kai-resource-isolator.io/request.1"]
        == "container=train\nmemory=1024m\ndevices=2\n"
    )


def test_init_container(world: Any) -> None:
    pod = world.a_pod(
        {"gpu-memory": "1024", "gpu-fraction-container-name": "prepare"}, initContainers=[{"name": "prepare"}]
    )
    after = world.admitted(pod)
    assert after["spec"]["containers"] == pod["spec"]["containers"]
    assert (
        after["metadata"]["annotations"]["kai-resource-isolator.io/request.i0"]
        == "container=prepare\nmemory=1024m\ndevices=1\n"
    )
    assert after["spec"]["initContainers"][0]["volumeMounts"][2]["name"] == "kai-resource-isolator-limits-i0"


def test_arrays_of_the_author_are_appended_to(world: Any) -> None:
    volume = {"name": "data", "emptyDir": {}}
    mount = {"name": "data", "mountPath": "/data"}
    variable = {"name": "A", "value": "1"}
    pod = world.a_pod(
        {"gpu-memory": "1"},
        volumes=[volume],
        containers=[{"name": "main", "volumeMounts": [mount], "env": [variable]}],
    )
    after = world.admitted(pod)
    assert after["spec"]["volumes"][0] == volume
    assert len(after["spec"]["volumes"]) == 5
    assert after["spec"]["containers"][0]["volumeMounts"] == [mount, *MOUNTS]
    assert after["spec"]["containers"][0]["env"][0] == variable


def test_empty_arrays(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, volumes=[], containers=[{"name": "main", "volumeMounts": [], "env": []}])
    after = world.admitted(pod)
    assert after["spec"]["containers"][0]["volumeMounts"] == MOUNTS
    assert len(after["spec"]["volumes"]) == 4


def test_variables_that_are_there_stay(world: Any) -> None:
    variable = {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "1m"}
    pod = world.a_pod({"gpu-memory": "4096"}, containers=[{"name": "main", "env": [variable]}])
    assert env_of(world.admitted(pod))["CUDA_DEVICE_MEMORY_LIMIT"] == variable


@pytest.mark.parametrize("annotations", [{"gpu-memory": "4096"}, {"gpu-fraction": "0.5"}])
@pytest.mark.parametrize("basis", [Known(15360, 15360), Unknown("down")])
@pytest.mark.parametrize("defaulting", [True, False])
def test_twice_is_once(world: Any, annotations: dict[str, str], basis: Any, defaulting: bool) -> None:
    once = world.admitted(world.a_pod(annotations), basis)
    if defaulting:
        once = world.defaulted(once)
    assert world.outcome_of(once, basis).operations == []


@pytest.mark.parametrize("hamicore", [True, False])
@pytest.mark.parametrize("target", [None, "prepare"])
def test_reinvocation_after_kai(world: Any, hamicore: bool, target: str | None) -> None:
    annotations = {"gpu-memory": "4096"} | ({"gpu-fraction-container-name": target} if target else {})
    pod = world.a_pod(annotations, initContainers=[{"name": "prepare"}])
    index, array = ("i0", "initContainers") if target else ("0", "containers")
    first = world.admitted(pod)
    assert len(limits_sources(first, index)) == 1
    kai = world.defaulted(world.after_kai(first, hamicore=hamicore))
    second = world.admitted(kai)
    assert limits_sources(second, index)[1] == {
        "configMap": {
            "name": f"a-abcdefg-shared-gpu-{index}",
            "items": [{"key": "CUDA_DEVICE_MEMORY_LIMIT", "path": "CUDA_DEVICE_MEMORY_LIMIT"}],
            "optional": True,
        }
    }
    assert second["spec"][array] == kai["spec"][array]
    assert world.outcome_of(world.defaulted(second)).operations == []


@pytest.mark.parametrize("hamicore", [True, False])
def test_order_with_kai_does_not_matter(world: Any, hamicore: bool) -> None:
    pod = world.a_pod({"gpu-fraction": "0.5"})
    ours_first = world.admitted(world.after_kai(world.admitted(pod), hamicore=hamicore))
    kai_first = world.admitted(world.after_kai(pod, hamicore=hamicore))
    assert env_of(ours_first) == env_of(kai_first)
    assert volumes_of(ours_first) == volumes_of(kai_first)
    assert ours_first["metadata"] == kai_first["metadata"]
    limit = env_of(ours_first)["CUDA_DEVICE_MEMORY_LIMIT"]
    assert ("valueFrom" in limit) is hamicore


def test_request_annotations_of_the_author_are_overwritten(world: Any) -> None:
    pod = world.a_pod(
        {
            "gpu-memory": "1024",
            "kai-resource-isolator.io/request.0": "container=main\nmemory=none\n",
            "kai-resource-isolator.io/request.i7": "container=x\nmemory=none\n",
        }
    )
    assert world.admitted(pod)["metadata"]["annotations"] == {
        "gpu-memory": "1024",
        "kai-resource-isolator.io/request.0": "container=main\nmemory=1024m\ndevices=1\n",
    }


@pytest.mark.parametrize(
    "volume",
    [
        {"name": OURS[0], "emptyDir": {}},
        {"name": OURS[0], "hostPath": {"path": "/tmp/mine.so", "type": "File"}},
        {"name": OURS[0], "hostPath": {"path": "/var/lib/kai-resource-isolator/libvgpu.so"}},
        {"name": OURS[2], "configMap": {"name": "mine"}},
        {"name": OURS[2], "projected": {"sources": [{"configMap": {"name": "mine"}}]}},
        {"name": OURS[2], "projected": {"sources": "nonsense"}},
        {"name": OURS[3], "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": OURS[3], "hostPath": {"path": "/", "type": ""}},
    ],
)
def test_volume_of_our_name_is_made_right(world: Any, volume: dict[str, Any]) -> None:
    plain = volumes_of(world.admitted(world.a_pod({"gpu-memory": "1"})))
    after = world.admitted(world.a_pod({"gpu-memory": "1"}, volumes=[{"name": "data", "emptyDir": {}}, volume]))
    assert volumes_of(after) == plain | {"data": {"name": "data", "emptyDir": {}}}


def test_mount_of_ours_that_was_made_writable_is_made_right(world: Any) -> None:
    mounts = [{"name": OURS[0], "mountPath": "/usr/local/vgpu/libvgpu.so"}]
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "volumeMounts": mounts}])
    assert world.admitted(pod)["spec"]["containers"][0]["volumeMounts"] == MOUNTS


@pytest.mark.parametrize("position", range(len(MOUNTS)))
def test_mount_of_ours_that_nothing_is_executed_from_is_made_right(world: Any, position: int) -> None:
    mounts = [MOUNTS[position] | {"bindMountOptions": ["noexec"]}]
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "volumeMounts": mounts}])
    after = world.admitted(pod)["spec"]["containers"][0]["volumeMounts"]
    assert sorted(map(str, after)) == sorted(map(str, MOUNTS))


@pytest.mark.parametrize(
    "path",
    ["/etc", "/etc/", "//etc", "etc", "/etc/ld.so.preload", "/usr", "/usr/local", "/usr/local/vgpu", "/",
     "/usr/./local", "/usr/local/vgpu/limits", "/usr/local/vgpu/limits/request", "/usr/local/vgpu/containers/x",
     "/tmp/../etc"],
)  # fmt: skip
def test_mount_of_the_author_in_our_way_is_refused(world: Any, path: str) -> None:
    mounts = [{"name": "ok", "mountPath": "/ok"}, {"name": "data", "mountPath": path}]
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "volumeMounts": mounts}])
    outcome = world.outcome_of(pod)
    assert (outcome.result, outcome.reason) == ("denied", "conflict")
    assert f"spec.containers[0].volumeMounts[1].mountPath is {path}" in outcome.message


@pytest.mark.parametrize("path", ["/etc/ssl", "/etcetera", "/usr/local/lib", "/usr/local/vgpus", "/data"])
def test_mount_of_the_author_elsewhere_is_kept(world: Any, path: str) -> None:
    mounts = [{"name": "data", "mountPath": path}]
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "volumeMounts": mounts}])
    assert world.admitted(pod)["spec"]["containers"][0]["volumeMounts"] == mounts + MOUNTS


@pytest.mark.parametrize("array", ["initContainers", "containers"])
@pytest.mark.parametrize("volume", OURS)
def test_our_volumes_cannot_be_borrowed(world: Any, array: str, volume: str) -> None:
    mounts = [{"name": volume, "mountPath": "/mine"}]
    spec: dict[str, Any] = {"containers": [{"name": "main"}], "initContainers": []}
    spec[array].append({"name": "thief", "volumeMounts": mounts})
    outcome = world.outcome_of(world.a_pod({"gpu-memory": "1"}, **spec))
    assert (outcome.result, outcome.reason) == ("denied", "conflict")
    assert volume in outcome.message
    assert "/mine" in outcome.message


def test_directories_are_a_choice(world: Any) -> None:
    options = Options(host_dir="/opt/iso", container_dir="/opt/vgpu", region_size_mib=2048)
    pod = world.admitted(world.a_pod({"gpu-memory": "1"}), options=options)
    assert [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]] == [
        "/opt/vgpu/libvgpu.so",
        "/etc/ld.so.preload",
        "/opt/vgpu/limits",
        "/opt/vgpu/containers",
    ]
    assert volumes_of(pod)[OURS[0]]["hostPath"]["path"] == "/opt/iso/libvgpu.so"
    assert volumes_of(pod)[OURS[3]]["emptyDir"] == {"sizeLimit": "2Gi"}
    assert env_of(pod)["CONTAINER_VGPU_MOUNT"]["value"] == "/opt/vgpu"


ON_THE_NODE = Options(region="hostPath")
REGION_MOUNT = {"name": OURS[3], "mountPath": "/usr/local/vgpu/containers", "subPathExpr": "$(POD_UID)_main"}
UID = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


def test_region_in_a_directory_of_the_node(world: Any) -> None:
    pod = world.admitted(world.a_pod({"gpu-memory": "4096"}), options=ON_THE_NODE)
    assert pod["metadata"]["annotations"]["kai-resource-isolator.io/request.0"] == (
        "container=main\nmemory=4096m\ndevices=1\nregion=hostPath\n"
    )
    assert volumes_of(pod)[OURS[3]] == {
        "name": OURS[3],
        "hostPath": {"path": "/var/lib/kai-resource-isolator/containers", "type": "Directory"},
    }
    assert pod["spec"]["containers"][0]["volumeMounts"] == [*MOUNTS[:3], REGION_MOUNT]
    assert env_of(pod)["POD_UID"] == UID
    assert world.outcome_of(world.defaulted(pod), options=ON_THE_NODE).operations == []
    kai = world.defaulted(world.after_kai(pod, hamicore=True))
    again = world.admitted(kai, options=ON_THE_NODE)
    assert again["spec"]["containers"] == kai["spec"]["containers"]


def test_every_container_has_a_directory_of_its_own(world: Any) -> None:
    annotations = {
        "nvidia.com/container.prepare.gpu-memory.limit": "1Gi",
        "nvidia.com/container.main.gpu-memory.limit": "1Gi",
        "nvidia.com/container.side.gpu-memory.limit": "1Gi",
    }
    pod = world.admitted(
        world.a_pod(annotations, initContainers=[{"name": "prepare"}], containers=[{"name": "main"}, {"name": "side"}]),
        options=ON_THE_NODE,
    )
    containers = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
    assert [
        (mount["name"][-2:].lstrip("-"), mount["subPathExpr"]) for c in containers for mount in c["volumeMounts"][3:]
    ] == [
        ("i0", "$(POD_UID)_prepare"),
        ("0", "$(POD_UID)_main"),
        ("1", "$(POD_UID)_side"),
    ]


@pytest.mark.parametrize(
    "preset",
    [
        [{"name": "POD_UID", "value": "0c9e7a52-6d2f-4b7e-9a53-b7a35d0c1f11"}],
        [{"name": "POD_UID", "value": ""}],
        [{"name": "POD_UID"}],
        [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        [{"name": "POD_UID", "valueFrom": {"configMapKeyRef": {"name": "mine", "key": "uid"}}}],
        [{"name": "A", "value": "1"}, UID, {"name": "POD_UID", "value": "$(A)"}],
        [{"name": "POD_UID", "value": "a"}, {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"}, UID],
    ],
)
def test_the_directory_cannot_be_redirected(world: Any, preset: list[dict[str, Any]]) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "env": preset}])
    outcome = world.outcome_of(pod, options=ON_THE_NODE)
    assert any("variable POD_UID was set to the pod's UID" in notice for notice in outcome.notices)
    after = world.admitted(pod, options=ON_THE_NODE)
    env = after["spec"]["containers"][0]["env"]
    assert [entry for entry in env if entry["name"] == "POD_UID"] == [
        UID for entry in preset if entry["name"] == "POD_UID"
    ]
    assert [entry for entry in env if entry["name"] == "A"] == [entry for entry in preset if entry["name"] == "A"]
    assert world.outcome_of(world.defaulted(after), options=ON_THE_NODE).operations == []
    # In an emptyDir nothing hangs on it.
    kept = world.admitted(pod)["spec"]["containers"][0]["env"]
    assert [entry for entry in kept if entry["name"] == "POD_UID"] == [e for e in preset if e["name"] == "POD_UID"]


def test_the_pods_own_uid_is_left_as_it_is(world: Any) -> None:
    variable = {"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}}
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "env": [variable]}])
    assert world.outcome_of(pod, options=ON_THE_NODE).notices == []
    assert env_of(world.admitted(pod, options=ON_THE_NODE))["POD_UID"] == variable


@pytest.mark.parametrize(
    "changed",
    [{"subPathExpr": "$(POD_NAME)_main"}, {"subPath": "another"}, {"readOnly": True}, {}],
)
def test_a_mount_of_the_region_is_made_right(world: Any, changed: dict[str, Any]) -> None:
    mount = {"name": OURS[3], "mountPath": "/usr/local/vgpu/containers"} | changed
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "volumeMounts": [mount]}])
    after = world.admitted(pod, options=ON_THE_NODE)
    assert REGION_MOUNT in after["spec"]["containers"][0]["volumeMounts"]
    assert mount not in after["spec"]["containers"][0]["volumeMounts"]


def test_the_directory_of_all_regions_is_nobodys(world: Any) -> None:
    thief = {"name": "thief", "volumeMounts": [{"name": OURS[3], "mountPath": "/all"}]}
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main"}, thief])
    outcome = world.outcome_of(pod, options=ON_THE_NODE)
    assert (outcome.result, outcome.reason) == ("denied", "conflict")
