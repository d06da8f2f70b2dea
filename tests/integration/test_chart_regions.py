"""`volumes.region: hostPath` on the real API server: what pods get, and that no way leads to another's directory."""

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.admission import mutating_webhook
from tests.cluster.client import MERGE_PATCH, STRATEGIC_PATCH, Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release, installed

from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

SPACE = "isolator-regions"
TEAM = "team-regions"
REGION = "kai-resource-isolator-region-0"
DIRECTORY = "/var/lib/kai-resource-isolator/containers"
OWN = {"name": "POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}}
REDIRECTED = {"name": "POD_UID", "value": "99999999-2222-3333-4444-555555555555"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def release(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    require_root()
    values = {"volumes": {"region": "hostPath"}}
    with (
        installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, values) as running,
        cluster.scratch_namespace(TEAM),
    ):
        yield running


def pod(annotations: dict[str, str] | None = None, **container: Any) -> Object:
    metadata = {
        "name": f"p{next(_numbers)}",
        "namespace": TEAM,
        "annotations": {"gpu-memory": "4096", **(annotations or {})},
    }
    main = {"name": "main", "image": "example.invalid/none", **container}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [main]}}


def test_a_container_mounts_its_own_directory_alone(release: Release) -> None:
    stored = release.cluster.create(pod(env=[REDIRECTED])).ok()
    (main,) = stored["spec"]["containers"]
    (mount,) = (mount for mount in main["volumeMounts"] if mount["name"] == REGION)
    assert (mount["mountPath"], mount["subPathExpr"]) == ("/usr/local/vgpu/containers", "$(POD_UID)_main")
    (volume,) = (volume for volume in stored["spec"]["volumes"] if volume["name"] == REGION)
    assert volume["hostPath"] == {"path": DIRECTORY, "type": "Directory"}
    assert [variable for variable in main["env"] if variable["name"] == "POD_UID"] == [OWN]
    assert "region=hostPath" in stored["metadata"]["annotations"]["kai-resource-isolator.io/request.0"]
    assert "POD_UID" in stored["metadata"]["annotations"]["kai-resource-isolator.io/notice"]


def redirect_variable(spec: Object) -> None:
    variables = spec["containers"][0]["env"]
    spec["containers"][0]["env"] = [REDIRECTED if one["name"] == "POD_UID" else one for one in variables]


def add_variable(spec: Object) -> None:
    variables = spec["containers"][0]["env"]
    spec["containers"][0]["env"] = [*(one for one in variables if one != REDIRECTED), REDIRECTED]


def mount_whole(spec: Object) -> None:
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["name"] == REGION:
            mount.pop("subPathExpr", None)


def mount_another(spec: Object) -> None:
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["name"] == REGION:
            mount["subPathExpr"] = "$(POD_UID)_side"


def mount_elsewhere(spec: Object) -> None:
    for volume in spec["volumes"]:
        if volume["name"] == REGION:
            volume["hostPath"] = {"path": "/var/lib", "type": "Directory"}


@pytest.mark.parametrize(
    ("undo", "sentence"),
    [
        (redirect_variable, "may mount its own part alone"),
        (add_variable, "may mount its own part alone"),
        (mount_whole, "may mount its own part alone"),
        (mount_another, "may mount its own part alone"),
        (mount_elsewhere, "must be of the pod's own, or the node's directory of regions"),
    ],
)
def test_a_way_to_another_directory_is_refused(
    release: Release, plane: ControlPlane, tmp_path: Path, undo: Callable[[Object], None], sentence: str
) -> None:
    """As by a webhook behind this one, or by a pod that was made to look admitted while none was called."""

    def change(manifest: Object) -> Object:
        changed = copy.deepcopy(manifest)
        undo(changed["spec"])
        return changed

    cluster = release.cluster
    condition = "has(object.metadata.annotations) && 'undo' in object.metadata.annotations"
    manifest = pod({"undo": "1"})
    with mutating_webhook(cluster, plane, tmp_path, "zz-last", change, condition):
        wait_until(lambda: cluster.create(manifest, query={"dryRun": "All"}).status != 201, "the last webhook's effect")
        answer = cluster.create(manifest)
    assert answer.status == 403
    assert sentence in answer.message


@pytest.mark.parametrize("taken_away", [False, True], ids=["asking", "not asking any more"])
def test_a_debug_container_sees_no_gpu(release: Release, taken_away: bool) -> None:
    cluster = release.cluster
    stored = cluster.create(pod()).ok()
    if taken_away:
        body = {"metadata": {"annotations": {"gpu-memory": None}}}
        cluster.call("PATCH", path_of(stored | {"kind": "Pod"}), body, content_type=MERGE_PATCH).ok()
    added = {"name": "debugger", "image": "example.invalid/none", "targetContainerName": "main"}
    change = {"spec": {"ephemeralContainers": [added]}, "metadata": {"name": stored["metadata"]["name"]}}
    path = path_of(stored | {"kind": "Pod"}) + "/ephemeralcontainers"
    (debugger,) = cluster.call("PATCH", path, change, content_type=STRATEGIC_PATCH).ok()["spec"]["ephemeralContainers"]
    assert debugger["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert not debugger.get("volumeMounts")


def test_the_node_keeps_the_directory_for_every_user(release: Release) -> None:
    directory = release.node.root / DIRECTORY.lstrip("/")
    wait_until(directory.is_dir, "the directory of regions")
    assert directory.stat().st_mode & 0o7777 == 0o1777
