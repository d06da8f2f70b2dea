"""A pytest plugin: the chart, installed for the tests of one module."""

from collections.abc import Iterator

import pytest
from tests.cluster.client import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import NAME, NAMESPACE, Release, installed

from isolator_testing.tools import require_root, skip_or_fail

GUARD = {"webhook": {"guard": {"mode": "enforce", "failurePolicy": "Fail"}}}


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, own_control_plane: ControlPlane | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with the monitor and the guard, all else by default, in the namespace `isolator`.

    On the cluster of KUBECONFIG it must be there: the tests install nothing on a cluster that is not theirs.
    """
    if own_control_plane is None:
        if not cluster.helm("list", "--namespace", NAMESPACE, "--filter", f"^{NAME}$", "--short").strip():
            skip_or_fail(f"install the chart as {NAME} in namespace {NAMESPACE} of this cluster, with {GUARD}")
        yield Release(cluster, None, NAMESPACE)
        return
    require_root()
    with installed(cluster, own_control_plane, tmp_path_factory.mktemp("node"), NAMESPACE, GUARD) as running:
        yield running
