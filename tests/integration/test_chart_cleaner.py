"""Regions that lie on the node: the chart's cleaner removes what pods left, with no right more than that takes."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.client import Cluster, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release, installed, upgrade

from isolator_testing.regions import RegionImage, write
from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

SPACE = "isolator-cleaner"
AT_ONCE = ["--least-age=0", "--interval=1"]
TENANT = 1000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def own(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    require_root()
    values = {"volumes": {"region": "hostPath"}, "cleaner": {"extraArgs": AT_ONCE}}
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), SPACE, values) as release:
        yield release


def left(own: Release, uid: str = "", owner: int = TENANT, mode: int = 0o700) -> Path:
    """What a pod may leave: its region, and beside it a directory with a file in it."""
    uid = uid or f"00000000-0000-4000-8000-{next(_numbers):012}"
    directory = own.node.root / "var/lib/kai-resource-isolator/containers" / f"{uid}_main"
    below = directory / "below"
    below.mkdir(parents=True)
    write(directory, RegionImage([], {}).v1())
    (below / "file").touch()
    for path in (below / "file", below, *directory.iterdir(), directory):
        os.chown(path, owner, owner)
    below.chmod(mode)
    # Not the permission that a stranger would need, since root is one here.
    directory.chmod(0o1777)
    return directory


def wait_until_gone(path: Path) -> None:
    wait_until(lambda: not path.exists(), f"removal of {path.name}")


def wait_for_passes(own: Release) -> None:
    """Until the cleaner has looked at everything again: it has removed, one after the other, what it surely can."""
    for _ in range(3):
        wait_until_gone(left(own, owner=0))


def test_what_pods_left_goes_and_what_they_have_stays(own: Release) -> None:
    running = own.node.only_pod("vramd")
    stays = left(own, running.stored["metadata"]["uid"])
    goes = [left(own), left(own, mode=0o1777)]
    for path in goes:
        wait_until_gone(path)
    wait_for_passes(own)
    assert (stays / "usage.cache").exists()


@pytest.mark.parametrize(
    ("capabilities", "mode"), [(["FOWNER"], 0o700), (["DAC_OVERRIDE"], 0o1777)], ids=["closed", "sticky"]
)
def test_each_capability_is_needed(own: Release, capabilities: list[str], mode: int) -> None:
    chosen = {"cleaner": {"securityContext": {"capabilities": {"drop": ["ALL"], "add": capabilities}}}}
    upgrade(own, chosen, "--reuse-values")
    path = left(own, mode=mode)
    wait_for_passes(own)
    assert path.exists()
    own.helm("rollback", "1", "--wait", "--timeout=300s")
    wait_until_gone(path)


def test_the_cleaner_asks_the_api_for_nothing(own: Release, plane: ControlPlane) -> None:
    pod = own.node.only_pod("cleaner")
    spec = pod.stored["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} == {"hostPath"}
    (container,) = spec["containers"]
    assert not container.get("ports")
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]}
    assert f":{SPACE}:{spec['serviceAccountName']}" not in plane.audit_log.read_text()
