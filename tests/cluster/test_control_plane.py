"""The control plane itself: what other tests rely on."""

import pytest
from tests.cluster.client import Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.every_change]


def pod(name: str, namespace: str) -> Object:
    container = {"name": "main", "image": "example.invalid/none"}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def test_the_version_is_the_one_asked_for(cluster: Cluster, plane: ControlPlane) -> None:
    assert "{}.{}".format(*cluster.version()) == plane.kubernetes


def test_controllers_make_pods_of_a_deployment(cluster: Cluster) -> None:
    with cluster.scratch_namespace("control-plane-deployment") as namespace:
        template = {"metadata": {"labels": {"app": "a"}}, "spec": pod("", "")["spec"]}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
        deployment = {"kind": "Deployment", "metadata": {"name": "a", "namespace": namespace}, "spec": spec}
        cluster.create(deployment | {"apiVersion": "apps/v1"}).ok()
        pods = path_of(pod("", namespace), named=False)
        wait_until(lambda: len(cluster.call("GET", pods).ok()["items"]) == 2, "two pods of the deployment")


def test_a_user_has_only_what_a_role_gives(cluster: Cluster) -> None:
    with cluster.scratch_namespace("control-plane-users") as namespace:
        refused = cluster.create(pod("a", namespace), user="tenant")
        assert refused.status == 403
        binding: Object = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        }
        cluster.create(binding).ok()
        wait_until(lambda: cluster.create(pod("a", namespace), user="tenant").status == 201, "the role to be seen")


def test_warnings_reach_the_caller(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/warn": "restricted"}
    with cluster.scratch_namespace("control-plane-warnings", labels) as namespace:
        answer = cluster.create(pod("a", namespace))
        assert answer.status == 201
        assert any("restricted" in warning for warning in answer.warnings)


def test_a_watch_from_before_a_compaction_is_gone(cluster: Cluster, plane: ControlPlane) -> None:
    with cluster.scratch_namespace("control-plane-compaction") as namespace:
        kept: Object = {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace}}
        old = cluster.create(kept).ok()["metadata"]["resourceVersion"]
        for name in ("b", "c"):
            cluster.create({"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}).ok()
        plane.compact()
        plane.stop_api_server()
        plane.start_api_server()
        wait_until(lambda: cluster.get(kept).status == 200, "what was stored before the restart")
        query = {"resourceVersion": old, "resourceVersionMatch": "Exact", "limit": "1"}
        assert cluster.call("GET", path_of(kept, named=False), query=query).status == 410
