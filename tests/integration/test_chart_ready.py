"""When `helm install --wait` ends, the API server trusts the webhook: no sharing pod is refused for its certificate."""

import time
from pathlib import Path

import pytest
from tests.cluster.client import Cluster, Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import installed

from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

NAMESPACE = "isolator-ready"
SECONDS = 5.0


def sharing(namespace: str) -> Object:
    metadata = {"generateName": "a-", "namespace": namespace, "annotations": {"gpu-memory": "1024"}}
    containers = [{"name": "main", "image": "example.invalid/none"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def test_no_sharing_pod_is_refused_once_the_pods_are_ready(
    cluster: Cluster, plane: ControlPlane, tmp_path: Path
) -> None:
    require_root()
    values = {"monitor": {"enabled": False}, "librarySync": {"enabled": False}}
    with (
        cluster.scratch_namespace("ready-team") as team,
        installed(cluster, plane, tmp_path, NAMESPACE, values),
    ):
        answers = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            answers.append(cluster.create(sharing(team), query={"dryRun": "All"}))
        refused = {answer.message for answer in answers if answer.status != 201}
        # That a pod is ready has to reach the Service's endpoints, which is not the webhook's to hasten.
        assert [message for message in refused if "no endpoints available" not in message] == []
        assert answers[-1].status == 201
