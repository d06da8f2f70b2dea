"""Options of mounts, which Kubernetes has from 1.37 on: the library stays a file that programs may execute.

On an image volume Kubernetes itself refuses such options.
"""

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import admission, client, control_plane, network, programs
from tests.cluster.client import Object, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release, installed

from isolator_testing.tools import require_root

NAMESPACE = "isolator-options"
KNOWN_FROM = (1, 37)
LIBRARY = "kai-resource-isolator-lib"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(
        tuple(map(int, programs.chosen_kubernetes().split("."))) < KNOWN_FROM,
        reason="bindMountOptions is there from Kubernetes 1.37 on",
    ),
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that stores options of mounts."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a control plane of its own, for its feature gate")
    require_root()
    state = tmp_path_factory.mktemp("plane")
    with (
        network.namespace(f"{network.PREFIX}options-{os.getpid()}") as where,
        control_plane.control_plane(
            state, programs.chosen_kubernetes(), where, ["VolumeBindMountOptions=true"]
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def release(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart with the library from the node."""
    values = {"monitor": {"enabled": False}}
    directory = tmp_path_factory.mktemp("node")
    with (
        client.connect(plane.kubeconfig, programs.chosen_kubernetes()) as cluster,
        installed(cluster, plane, directory, NAMESPACE, values) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def team(release: Release) -> Iterator[str]:
    with release.cluster.scratch_namespace("options-team") as namespace:
        yield namespace


def sharing(namespace: str, name: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "annotations": {"gpu-memory": "4096"}}
    spec = {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "example.invalid/none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def not_executable(pod: Object) -> Object:
    """The pod with nothing to be executed from the library's mount, if it has that."""
    changed = copy.deepcopy(pod)
    for mount in changed["spec"]["containers"][0].get("volumeMounts", []):
        if mount["name"] == LIBRARY:
            mount["bindMountOptions"] = ["noexec"]
    return changed


def mounts(pod: Object) -> list[Object]:
    return [mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if "isolator" in mount["name"]]


def test_a_pod_that_brings_the_mount_gets_it_right(release: Release, team: str) -> None:
    stored = release.cluster.create(sharing(team, "right")).ok()
    brought = not_executable(sharing(team, "brought") | {"spec": stored["spec"]})
    created = release.cluster.create(brought).ok()
    assert mounts(created) == mounts(stored) != mounts(brought)


def test_a_webhook_that_has_the_last_word_is_refused(
    release: Release, plane: ControlPlane, team: str, tmp_path: Path
) -> None:
    cluster, manifest = release.cluster, sharing(team, "last")
    condition = "object.metadata.name == 'last'"
    with admission.mutating_webhook(cluster, plane, tmp_path, "zz-last", not_executable, condition):
        wait_until(lambda: cluster.create(manifest, query={"dryRun": "All"}).status != 201, "the last webhook's effect")
        answer = cluster.create(manifest)
    assert answer.status == 403
    assert "has not the mounts that cap it" in answer.message
