"""The chart's part that writes into regions, as a container of its own pod: it gets at them, and may do nothing else.

The tests' node gives each container a PID namespace, `hostPID` or not: what PIDs it tells is tried by the monitor's own
tests.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.client import Cluster, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release, installed

from isolator_testing.regions import Card, RegionImage, Slot, Use, write
from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

SPACE = "isolator-steerer"
TEAM = "team-steerer"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
RECENT_KERNEL_OFFSET = 2_008_904


@pytest.fixture(scope="module")
def release(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    require_root()
    values = {"monitor": {"enabled": True, "updateInterval": "1s"}}
    with (
        installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, values) as running,
        cluster.scratch_namespace(TEAM),
    ):
        yield running


def recent_kernel(region: Path) -> int:
    with region.open("rb") as file:
        file.seek(RECENT_KERNEL_OFFSET)
        return int.from_bytes(file.read(4), "little", signed=True)


def test_it_writes_into_the_region_of_a_pod(release: Release) -> None:
    """The word that says whether there were launches lately, which it counts down."""
    metadata = {"name": "shared", "namespace": TEAM, "annotations": {"gpu-memory": "4096"}}
    spec = {"nodeName": f"node-of-{SPACE}", "containers": [{"name": "main", "image": "example.invalid/none"}]}
    stored = release.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).ok()
    uid = stored["metadata"]["uid"]
    volumes = release.node.root / "var/lib/kubelet/pods" / uid / "volumes"
    directory = volumes / "kubernetes.io~empty-dir/kai-resource-isolator-region-0" / f"{uid}_main"
    region = write(directory, RegionImage([Card(UUID, 1 << 30)], {0: Slot(7, [Use(1)])}).v1())
    for path in (directory, *directory.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o666)
    assert recent_kernel(region) == 2
    wait_until(lambda: recent_kernel(region) == 0, "the word that is counted down")


def test_it_has_no_right_beside_the_directory_of_pods(release: Release) -> None:
    pod = release.node.only_pod("monitor")
    (container,) = (each for each in pod.stored["spec"]["containers"] if each["name"] == "steerer")
    assert not container.get("ports")
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/run/isolator", "/kubelet/pods"}
