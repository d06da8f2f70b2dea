"""pytest fixtures. A module that wants them says `pytest_plugins = ["tests.cluster.fixtures"]`.

With KUBECONFIG set, tests run on that cluster, and those that must stop or read the control plane itself are skipped.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster import client, control_plane, network, programs, waiting
from tests.cluster.client import Cluster
from tests.cluster.control_plane import ControlPlane


def pytest_configure(config: pytest.Config) -> None:
    """Have progress shown while pytest captures what tests print: a build of minutes would look like a hang."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        waiting.say_within(capture.global_and_fixture_disabled)


@pytest.fixture(scope="session")
def own_control_plane() -> Iterator[ControlPlane | None]:
    """The control plane that this run started, None where KUBECONFIG names another cluster.

    As root it lives in a network namespace of its own, whose addresses the API server accepts as endpoints.
    """
    if os.environ.get("KUBECONFIG"):
        yield None
        return
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isolator-cluster-")))
        where = network.LOOPBACK
        if os.geteuid() == 0:
            where = stack.enter_context(network.namespace(f"{network.PREFIX}{os.getpid()}"))
        yield stack.enter_context(control_plane.control_plane(state, programs.chosen_kubernetes(), where))


@pytest.fixture(scope="session")
def plane(own_control_plane: ControlPlane | None) -> ControlPlane:
    """The control plane as processes, for tests that stop it, read its audit log or use its network namespace."""
    if own_control_plane is None:
        pytest.skip("needs a control plane of its own, not the cluster of KUBECONFIG")
    return own_control_plane


@pytest.fixture(scope="session")
def cluster(own_control_plane: ControlPlane | None) -> Iterator[Cluster]:
    """An administrator's access to the cluster."""
    kubeconfig = own_control_plane.kubeconfig if own_control_plane else Path(os.environ["KUBECONFIG"])
    with client.connect(kubeconfig, programs.chosen_kubernetes()) as connected:
        yield connected
