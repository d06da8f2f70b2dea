"""A pytest plugin: the chart, installed for the tests of one module."""

from collections.abc import Iterator

import pytest
from tests.cluster.client import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import NAMESPACE, Release, installed

from isolator_testing.tools import require_root

GUARD = {"webhook": {"guard": {"mode": "enforce", "failurePolicy": "Fail"}}}


@pytest.fixture(scope="module")
def release(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart with the monitor and the guard, all else by default, in the namespace `isolator`."""
    require_root()
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), NAMESPACE, GUARD) as running:
        yield running
