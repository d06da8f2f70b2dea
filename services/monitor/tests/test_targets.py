"""A container's files are found by what its pod's spec mounts, and nowhere else."""

import json
from typing import Any

import pytest

from isolator_monitor.pods import Pod, parse_pods
from isolator_monitor.targets import Place, Root, Target, targets

UID = "5e2f7a2c-9f4a-4b53-8d5c-2f1f3b9a7e10"
DIRECTORY = "/usr/local/vgpu"
KEY = f"{UID}_main"


def pods(*items: dict[str, Any]) -> tuple[Pod, ...]:
    return parse_pods(json.dumps({"kind": "PodList", "items": list(items)}).encode(), "pods")


def pod(
    mounts: list[dict[str, Any]],
    volumes: list[dict[str, Any]],
    env: list[dict[str, Any]] | None = None,
    phase: str = "Running",
    annotations: dict[str, str] | None = None,
) -> tuple[Pod, ...]:
    container = {"name": "main", "volumeMounts": mounts, "env": env or []}
    return pods(
        {
            "metadata": {"name": "a", "namespace": "team", "uid": UID, "annotations": annotations},
            "spec": {"containers": [container, {"name": "side"}], "volumes": volumes, "nodeName": "n1"},
            "status": {"phase": phase},
        }
    )


REGION = {"name": "kai-resource-isolator-region-0", "mountPath": "/usr/local/vgpu/containers"}
EMPTY_DIR = {"name": "kai-resource-isolator-region-0", "emptyDir": {"sizeLimit": "16Mi"}}
LIMITS = {"name": "kai-resource-isolator-limits-0", "projected": {"sources": []}}
POD_UID = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
CONTAINER_NAME = {"name": "CONTAINER_NAME", "value": "main"}


def test_empty_dir_and_limits_are_below_the_kubelets_directory() -> None:
    assert targets(pod([REGION], [EMPTY_DIR, LIMITS]), DIRECTORY) == (
        Target(
            UID,
            "main",
            (
                Place(
                    Root.KUBELET,
                    ("pods", UID, "volumes", "kubernetes.io~empty-dir", "kai-resource-isolator-region-0", KEY),
                ),
            ),
            Place(Root.KUBELET, ("pods", UID, "volumes", "kubernetes.io~projected", "kai-resource-isolator-limits-0")),
        ),
    )


def test_pods_of_upstreams_chart_share_one_host_directory() -> None:
    """KAI-resource-isolator 1.1 mounts its directory and, above that, `containers` of it."""
    mounts = [
        {"name": "vgpu", "mountPath": "/usr/local/vgpu"},
        {"name": "containers", "mountPath": "/usr/local/vgpu/containers/"},
    ]
    volumes = [
        {"name": "vgpu", "hostPath": {"path": "/usr/local/vgpu"}},
        {"name": "containers", "hostPath": {"path": "/usr/local/vgpu/containers"}},
    ]
    (target,) = targets(pod(mounts, volumes), DIRECTORY)
    assert target == Target(UID, "main", (Place(Root.REGIONS, (KEY,)),), None)


def test_host_path_by_an_expression() -> None:
    mount = REGION | {"subPathExpr": "$(POD_UID)_$(CONTAINER_NAME)"}
    volumes = [{"name": REGION["name"], "hostPath": {"path": "/var/lib/kai-resource-isolator/containers"}}]
    (target,) = targets(pod([mount], volumes, [POD_UID, CONTAINER_NAME]), DIRECTORY)
    assert target.region == (Place(Root.REGIONS, (KEY, KEY)), Place(Root.REGIONS, (KEY,)))


@pytest.mark.parametrize(
    ("region", "places"),
    [("\nregion=hostPath\n", [(KEY,)]), ("\n", [(KEY, KEY), (KEY,)]), ("\nregion=elsewhere\n", [(KEY, KEY), (KEY,)])],
)
def test_the_request_says_whether_the_directory_is_mounted(region: str, places: list[tuple[str, ...]]) -> None:
    mount = REGION | {"subPathExpr": "$(POD_UID)_main"}
    volumes = [{"name": REGION["name"], "hostPath": {"path": "/var/lib/kai-resource-isolator/containers"}}]
    annotations = {"kai-resource-isolator.io/request.0": f"container=main\nmemory=1m{region}"}
    (target,) = targets(pod([mount], volumes, [POD_UID], annotations=annotations), DIRECTORY)
    assert target.region == tuple(Place(Root.REGIONS, place) for place in places)


@pytest.mark.parametrize(
    "env",
    [
        [CONTAINER_NAME],
        [POD_UID, {"name": "CONTAINER_NAME", "value": "$(OTHER)"}],
        [POD_UID, {"name": "CONTAINER_NAME", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
    ],
)
def test_an_expression_that_the_pod_does_not_tell_is_no_place(env: list[dict[str, Any]]) -> None:
    mount = REGION | {"subPathExpr": "$(POD_UID)_$(CONTAINER_NAME)"}
    volumes = [{"name": REGION["name"], "hostPath": {"path": "/containers"}}]
    assert targets(pod([mount], volumes, env), DIRECTORY) == ()


def test_the_authors_own_variable_wins_the_expansion() -> None:
    mount = REGION | {"subPathExpr": "$(POD_UID)"}
    volumes = [{"name": REGION["name"], "hostPath": {"path": "/containers"}}]
    env = [POD_UID, {"name": "POD_UID", "value": "other"}]
    (target,) = targets(pod([mount], volumes, env), DIRECTORY)
    assert target.region[0] == Place(Root.REGIONS, ("other", KEY))


def test_the_deepest_mount_decides() -> None:
    mounts = [REGION, {"name": "deep", "mountPath": f"/usr/local/vgpu/containers/{KEY}"}]
    volumes = [EMPTY_DIR, {"name": "deep", "emptyDir": {}}]
    (target,) = targets(pod(mounts, volumes), DIRECTORY)
    assert target.region[0].names[-1] == "deep"


def test_another_kind_of_volume_is_no_place() -> None:
    volumes = [{"name": REGION["name"], "persistentVolumeClaim": {"claimName": "c"}}]
    assert targets(pod([REGION], volumes), DIRECTORY) == ()
    assert targets(pod([REGION], []), DIRECTORY) == ()


def test_containers_without_mounts_are_looked_for_by_name_only_on_request() -> None:
    assert targets(pod([], []), DIRECTORY) == ()
    assert targets(pod([], []), DIRECTORY, by_name=True) == (
        Target(UID, "main", (Place(Root.REGIONS, (KEY,)),), None),
        Target(UID, "side", (Place(Root.REGIONS, (f"{UID}_side",)),), None),
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_has_no_files_to_read(phase: str) -> None:
    assert targets(pod([REGION], [EMPTY_DIR], phase=phase), DIRECTORY) == ()


def test_init_containers_have_volumes_of_their_own_index() -> None:
    container = {"name": "warm", "volumeMounts": [REGION | {"name": "kai-resource-isolator-region-i0"}]}
    item = {
        "metadata": {"name": "a", "uid": UID},
        "spec": {
            "initContainers": [container],
            "containers": [{"name": "main"}],
            "volumes": [
                {"name": "kai-resource-isolator-region-i0", "emptyDir": {}},
                {"name": "kai-resource-isolator-limits-i0", "projected": {}},
            ],
        },
    }
    (target,) = targets(pods(item), DIRECTORY)
    assert target.container == "warm"
    assert target.region[0].names[4:] == ("kai-resource-isolator-region-i0", f"{UID}_warm")
    assert target.limits is not None
    assert target.limits.names[-1] == "kai-resource-isolator-limits-i0"


def test_a_list_may_be_json_of_any_writer() -> None:
    """Many escape what is not ASCII, and YAML knows no surrogate pairs."""
    metadata = {"name": "a", "annotations": {"note": "\N{ROCKET}"}}
    listed = {"kind": "PodList", "items": [{"metadata": metadata, "spec": {}}]}
    for ascii_only in (True, False):
        (pod,) = parse_pods(json.dumps(listed, ensure_ascii=ascii_only).encode(), "pods")
        assert pod.annotations == {"note": "\N{ROCKET}"}
