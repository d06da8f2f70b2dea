"""Pods of every kind through the real API server, with the chart's webhook and policies in the way."""

import copy
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.admission import mutating_webhook
from tests.cluster.client import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Answer, Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import NAME, NAMESPACE, Release
from tests.demo import kai

pytest_plugins = ["tests.cluster.fixtures", "tests.cluster.release_fixture"]
pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.every_change]

REQUEST = "kai-resource-isolator.io/request."
TEAM = "team"
PRELOAD = "/etc/ld.so.preload"
MOUNTS = {PRELOAD, "/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/limits", "/usr/local/vgpu/containers"}
SHARE = {"gpu-memory": "4096"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def team(release: Release) -> Iterator[str]:
    """A tenants' namespace, in which the user `tenant` has the role `edit`."""
    cluster = release.cluster
    with cluster.scratch_namespace(TEAM):
        binding: Object = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": TEAM},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        }
        cluster.create(binding).ok()
        wait_until(lambda: cluster.create(pod(), user="tenant").status == 201, "the tenant's role")
        wait_until(lambda: policies_are_in_force(cluster), "the policies to be in force")
        yield TEAM


def policies_are_in_force(cluster: Cluster) -> bool:
    written = {"kind": "ConfigMap", "metadata": {"name": "probe", "namespace": TEAM}, "data": {kai.LIMIT: "1m"}}
    answer = cluster.create(written, user="tenant")
    cluster.delete(written)
    return answer.status == 403


def pod(annotations: dict[str, str] | None = None, namespace: str = TEAM, **spec: Any) -> Object:
    metadata: Object = {"name": f"p{next(_numbers)}", "namespace": namespace}
    if annotations is not None:
        metadata["annotations"] = annotations
    container = {"name": "main", "image": "example.invalid/none"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def labelled(manifest: Object, **labels: str) -> Object:
    manifest["metadata"]["labels"] = labels
    return manifest


def containers(names: str) -> list[Object]:
    return [{"name": name, "image": "example.invalid/none"} for name in names.split()]


def mounts(stored: Object, container: str) -> set[str]:
    every = stored["spec"]["containers"] + stored["spec"].get("initContainers", [])
    (found,) = (item for item in every if item["name"] == container)
    return {mount["mountPath"] for mount in found.get("volumeMounts", []) if mount["name"].startswith(NAME)}


def requests(stored: Object) -> dict[str, str]:
    annotations = stored["metadata"].get("annotations", {})
    return {key.removeprefix(REQUEST): value for key, value in annotations.items() if key.startswith(REQUEST)}


UNTOUCHED = {
    "without annotations": pod(),
    "with no annotation at all but an empty map": pod({}),
    "with another annotation": pod({"a": "b"}),
    "with init containers": pod(initContainers=containers("prepare")),
    "with a sidecar": pod(initContainers=[containers("side")[0] | {"restartPolicy": "Always"}]),
    "with requests alone": pod(containers=[containers("main")[0] | {"resources": {"requests": {"cpu": "1"}}}]),
    "with empty resources": pod(containers=[containers("main")[0] | {"resources": {}}]),
    "with empty limits": pod(containers=[containers("main")[0] | {"resources": {"limits": {}}}]),
    "with a whole GPU": pod(containers=[containers("main")[0] | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}]),
    "without a service account's token": pod(automountServiceAccountToken=False),
    "in the host's network": pod(hostNetwork=True),
    "for Windows": pod(os={"name": "windows"}),
    "opted out": pod(SHARE | {"kai-resource-isolator.io/inject": "false"}),
    "opted out in capitals": pod(SHARE | {"kai-resource-isolator.io/inject": "FALSE"}),
    "labelled to be ignored": labelled(pod(SHARE), **{"kai-resource-isolator.io/webhook": "ignore"}),
    "of the system": pod(SHARE, namespace="kube-system"),
    "of the release": pod(SHARE, namespace=NAMESPACE, nodeName="elsewhere"),
}


@pytest.mark.parametrize("kind", UNTOUCHED)
def test_a_pod_that_asks_for_no_share_is_admitted_as_it_is(release: Release, team: str, kind: str) -> None:
    del team
    stored = release.cluster.create(UNTOUCHED[kind], query={"dryRun": "All"}).ok()
    assert requests(stored) == {}
    assert not [volume for volume in stored["spec"].get("volumes", []) if volume["name"].startswith(NAME)]


SHARING: dict[str, tuple[Object, dict[str, str]]] = {
    "memory": (pod(SHARE), {"main": "0"}),
    "fraction": (pod({"gpu-fraction": "0.5"}), {"main": "0"}),
    "a named container": (
        pod(SHARE | {"gpu-fraction-container-name": "b"}, containers=containers("a b c")),
        {"b": "1"},
    ),
    "an init container": (
        pod(SHARE | {"gpu-fraction-container-name": "i"}, initContainers=containers("x i")),
        {"i": "i1"},
    ),
    "no service account's token": (pod(SHARE, automountServiceAccountToken=False), {"main": "0"}),
    "opt-out that says true": (pod(SHARE | {"kai-resource-isolator.io/inject": "true"}), {"main": "0"}),
    "KAI's scheduler": (pod(SHARE, schedulerName="kai-scheduler"), {"main": "0"}),
    "time alone, on a whole GPU": (
        pod(
            {"kai-resource-isolator.io/gpu-cores": "30"},
            containers=[*containers("a"), containers("b")[0] | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        ),
        {"b": "1"},
    ),
    "request annotations brought along": (
        pod(SHARE | {REQUEST + "0": "memory=none", REQUEST + "7": "x"}),
        {"main": "0"},
    ),
}


@pytest.mark.parametrize("kind", SHARING)
def test_a_sharing_pod_gets_its_mounts(release: Release, team: str, kind: str) -> None:
    del team
    manifest, expected = SHARING[kind]
    stored = release.cluster.create(manifest, user="tenant").ok()
    assert set(requests(stored)) == set(expected.values())
    for container in stored["spec"]["containers"] + stored["spec"].get("initContainers", []):
        assert mounts(stored, container["name"]) == (MOUNTS if container["name"] in expected else set())
    assert "memory=none" not in "".join(requests(stored).values())


def test_what_kai_would_refuse_is_refused_with_its_reason(release: Release, team: str) -> None:
    del team
    answer = release.cluster.create(pod({"gpu-memory": "4Gi"}), user="tenant")
    assert answer.status in (400, 403)
    assert "gpu-memory annotation value must be a positive integer greater than 0" in answer.message


def test_generated_names_server_side_apply_and_dry_run(release: Release, team: str) -> None:
    cluster = release.cluster
    generated = pod(SHARE)
    generated["metadata"] = {"generateName": "some-", "namespace": team, "annotations": SHARE}
    assert mounts(cluster.create(generated).ok(), "main") == MOUNTS

    applied = pod(SHARE)
    query = {"fieldManager": "someone"}
    first = cluster.call("PATCH", path_of(applied), applied, content_type=APPLY_PATCH, query=query).ok()
    again = cluster.call("PATCH", path_of(applied), applied, content_type=APPLY_PATCH, query=query).ok()
    assert mounts(first, "main") == MOUNTS
    assert again["spec"] == first["spec"]

    tried = pod(SHARE)
    assert mounts(cluster.create(tried, query={"dryRun": "All"}).ok(), "main") == MOUNTS
    assert cluster.get(tried).status == 404


def test_pods_of_a_deployment(release: Release, team: str) -> None:
    cluster = release.cluster
    labels = {"app": "sharing"}
    template = {"metadata": {"labels": labels, "annotations": SHARE}, "spec": {"containers": containers("main")}}
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sharing", "namespace": team},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    cluster.create(deployment, user="tenant").ok()
    listed = path_of(pod(), named=False)

    def made() -> list[Object]:
        items = cluster.call("GET", listed, query={"labelSelector": "app=sharing"}).ok()["items"]
        return list(items) if len(items) == 2 else []

    for item in wait_until(made, "two pods of the deployment"):
        assert mounts(item, "main") == MOUNTS
    cluster.delete(deployment)


@contextmanager
def kai_admission(release: Release, plane: ControlPlane, directory: Path, name: str) -> Iterator[None]:
    def admit(manifest: Object) -> Object:
        named = copy.deepcopy(manifest)
        named["metadata"].setdefault("name", "")
        return kai.admit(named, hamicore=True)

    condition = "object.spec.schedulerName == 'kai-scheduler'"
    with ExitStack() as stack:
        runtime = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "runc",
        }
        release.cluster.create(runtime).ok()
        stack.callback(release.cluster.delete, runtime)
        stack.enter_context(mutating_webhook(release.cluster, plane, directory, name, admit, condition))
        probe = pod(SHARE, schedulerName="kai-scheduler")
        wait_until(
            lambda: (
                kai.CONFIG_MAP_ANNOTATION
                in release.cluster.create(probe, query={"dryRun": "All"}).ok()["metadata"]["annotations"]
            ),
            "KAI's admission to be called",
        )
        yield


@pytest.mark.parametrize("name", ["a-kai-admission", "mutating-kai-admission"])
def test_with_kais_admission_in_front_and_behind(
    release: Release, team: str, plane: ControlPlane, tmp_path: Path, name: str
) -> None:
    del team
    with kai_admission(release, plane, tmp_path, name):
        stored = release.cluster.create(pod(SHARE, schedulerName="kai-scheduler"), user="tenant").ok()
    assert mounts(stored, "main") == MOUNTS
    prefix = stored["metadata"]["annotations"][kai.CONFIG_MAP_ANNOTATION]
    (limits,) = (v for v in stored["spec"]["volumes"] if v["name"] == "kai-resource-isolator-limits-0")
    (config_map,) = (s["configMap"] for s in limits["projected"]["sources"] if "configMap" in s)
    assert config_map["name"] == f"{prefix}-0"
    assert config_map["optional"] is True
    variables = {item["name"]: item for item in stored["spec"]["containers"][0]["env"]}
    assert variables[kai.LIMIT]["valueFrom"]["configMapKeyRef"]["name"] == f"{prefix}-0"
    assert stored["spec"]["runtimeClassName"] == "nvidia"


def annotate(cluster: Cluster, stored: Object, value: str | None, subresource: str = "", **options: Any) -> Answer:
    body = {"metadata": {"annotations": {REQUEST + "0": value}}}
    path = path_of(stored | {"kind": "Pod"}) + subresource
    return cluster.call("PATCH", path, body, content_type=MERGE_PATCH, **options)


@pytest.mark.parametrize("value", ["container=main\nmemory=99999m\n", None])
def test_a_tenant_cannot_change_its_limit(release: Release, team: str, value: str | None) -> None:
    del team
    cluster = release.cluster
    stored = cluster.create(pod(SHARE), user="tenant").ok()
    # `edit` does not hold pods/status everywhere; the policy must hold for whoever may write it.
    grant(cluster, "status-writer", [{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}])
    for subresource, user in (("", "tenant"), ("/status", "status-writer")):
        answer = annotate(cluster, stored, value, subresource, user=user)
        assert answer.status == 403
        assert "hold the pod's GPU limits" in answer.message
    assert requests(cluster.get(pod_of(stored)).ok()) == requests(stored)


def pod_of(stored: Object) -> Object:
    return stored | {"kind": "Pod"}


def grant(cluster: Cluster, user: str, rules: list[Object]) -> None:
    metadata = {"name": user, "namespace": TEAM}
    group = "rbac.authorization.k8s.io"
    cluster.apply(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    )
    attributes = {"namespace": TEAM, "verb": rules[0]["verbs"][0], "group": rules[0]["apiGroups"][0]}
    resource, _, subresource = rules[0]["resources"][0].partition("/")
    asked = {"user": user, "resourceAttributes": attributes | {"resource": resource, "subresource": subresource}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(lambda: cluster.call("POST", path, review).ok()["status"]["allowed"], f"the role of {user}")


def test_an_administrator_and_whom_rbac_lets_change_a_limit(release: Release, team: str) -> None:
    del team
    cluster = release.cluster
    stored = cluster.create(pod(SHARE), user="tenant").ok()
    assert requests(annotate(cluster, stored, "container=main\nmemory=8192m\n").ok())["0"].endswith("memory=8192m\n")
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    limits = {"apiGroups": ["kai-resource-isolator.io"], "resources": ["limits"], "verbs": ["update"]}
    grant(cluster, "resizer", [pods])
    assert annotate(cluster, stored, "container=main\nmemory=1m\n", user="resizer").status == 403
    grant(cluster, "resizer", [limits, pods])
    annotate(cluster, stored, "container=main\nmemory=1m\n", user="resizer").ok()


def test_other_changes_of_a_sharing_pod_go_on_working(release: Release, team: str) -> None:
    del team
    cluster = release.cluster
    stored = cluster.create(pod(SHARE), user="tenant").ok()
    body = {"metadata": {"annotations": {"mine": "1"}, "labels": {"mine": "1"}}}
    cluster.call("PATCH", path_of(pod_of(stored)), body, content_type=MERGE_PATCH, user="tenant").ok()
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": stored["metadata"]["name"]}}
    node = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    cluster.call("POST", path_of(pod_of(stored)) + "/binding", binding | {"target": node}).ok()


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": TEAM}, "data": data}


def test_kais_limit_is_written_by_kai_only(release: Release, team: str) -> None:
    del team
    cluster = release.cluster
    binder = "system:serviceaccount:kai-scheduler:binder"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "update", "patch", "get"]}]
    metadata = {"name": "kai-binder", "namespace": TEAM}
    group = "rbac.authorization.k8s.io"
    cluster.apply(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
         "roleRef": {"apiGroup": group, "kind": "Role", "name": "kai-binder"},
         "subjects": [{"kind": "ServiceAccount", "name": "binder", "namespace": "kai-scheduler"}]},
    )  # fmt: skip
    shared = config_map("a-shared-gpu-0", CUDA_DEVICE_MEMORY_LIMIT="4147m", GPU_PORTION="0.27")
    wait_until(lambda: cluster.create(shared, user=binder).status == 201, "KAI's binder to write its ConfigMap")

    raised = config_map("a-shared-gpu-0", CUDA_DEVICE_MEMORY_LIMIT="15360m", GPU_PORTION="0.27")
    removed = config_map("a-shared-gpu-0", GPU_PORTION="0.27")
    for change in (raised, removed):
        answer = cluster.call("PUT", path_of(change), change, user="tenant")
        assert answer.status == 403
        assert "is written by KAI's binder only" in answer.message
    answer = cluster.create(config_map("mine", CUDA_DEVICE_MEMORY_LIMIT="1m"), user="tenant")
    assert answer.status == 403
    hidden = config_map("mine") | {"binaryData": {kai.LIMIT: "MW0="}}
    assert cluster.create(hidden, user="tenant").status == 403

    other = config_map("a-shared-gpu-0", CUDA_DEVICE_MEMORY_LIMIT="4147m", GPU_PORTION="0.27", mine="1")
    cluster.call("PUT", path_of(other), other, user="tenant").ok()
    cluster.create(config_map("mine", other="x"), user="tenant").ok()
    cluster.call("PUT", path_of(raised), raised).ok()


def drop_mounts(manifest: Object) -> Object:
    changed = copy.deepcopy(manifest)
    for container in changed["spec"]["containers"]:
        kept = [mount for mount in container.get("volumeMounts", []) if mount["mountPath"] != PRELOAD]
        container["volumeMounts"] = kept
    return changed


def swap_library(manifest: Object) -> Object:
    changed = copy.deepcopy(manifest)
    for volume in changed["spec"].get("volumes", []):
        if volume["name"] == "kai-resource-isolator-lib":
            volume["hostPath"] = {"path": "/dev/null", "type": ""}
    return changed


def swap_limits(manifest: Object) -> Object:
    changed = copy.deepcopy(manifest)
    for volume in changed["spec"].get("volumes", []):
        if volume["name"] == "kai-resource-isolator-limits-0":
            volume.pop("projected")
            volume["emptyDir"] = {}
    return changed


WHOLE_GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
BY_MEMORY = pod(SHARE | {"undo": "1"})
BY_CORES = pod(
    {"kai-resource-isolator.io/gpu-cores": "30", "undo": "1"},
    containers=[containers("other")[0], containers("main")[0] | WHOLE_GPU],
)


@pytest.mark.parametrize(
    ("manifest", "change", "sentence"),
    [
        (BY_MEMORY, drop_mounts, "has not the mounts that cap it"),
        (BY_CORES, drop_mounts, "has not the mounts that cap it"),
        (BY_MEMORY, swap_library, "must be the node's library and preload file"),
        (BY_MEMORY, swap_limits, "must project the request annotation"),
    ],
)
def test_what_a_later_webhook_undoes_is_refused(
    release: Release,
    team: str,
    plane: ControlPlane,
    tmp_path: Path,
    manifest: Object,
    change: Any,
    sentence: str,
) -> None:
    del team
    cluster = release.cluster
    # By a condition that holds in the second round only if it held in the first: it is called last in both.
    condition = "has(object.metadata.annotations) && 'undo' in object.metadata.annotations"
    with mutating_webhook(cluster, plane, tmp_path, "zz-last", change, condition):
        wait_until(lambda: cluster.create(manifest, query={"dryRun": "All"}).status != 201, "the last webhook's effect")
        answer = cluster.create(manifest, user="tenant")
    assert answer.status == 403
    assert sentence in answer.message


@pytest.mark.parametrize("opt_out", ["annotation", "label"])
def test_an_administrators_label_keeps_a_namespace_from_opting_out(release: Release, opt_out: str) -> None:
    cluster = release.cluster
    name = f"enforced-{opt_out}"
    manifest = pod(SHARE | {"kai-resource-isolator.io/inject": "false"}, namespace=name)
    if opt_out == "label":
        manifest = labelled(pod(SHARE, namespace=name), **{"kai-resource-isolator.io/webhook": "ignore"})
    with cluster.scratch_namespace(name, {"kai-resource-isolator.io/isolation": "enforce"}):
        assert mounts(cluster.create(manifest, query={"dryRun": "All"}).ok(), "main") == MOUNTS


def test_an_administrators_label_exempts_a_namespace(release: Release) -> None:
    cluster = release.cluster
    with cluster.scratch_namespace("exempted", {"kai-resource-isolator.io/isolation": "exempt"}):
        stored = cluster.create(pod(SHARE, namespace="exempted")).ok()
        assert "memory=none" in requests(stored)["0"]


def test_an_administrator_leaves_a_namespace_out_as_upstream_lets_it(release: Release) -> None:
    cluster = release.cluster
    with cluster.scratch_namespace("ignored", {"kai-resource-isolator.io/webhook": "ignore"}):
        assert requests(cluster.create(pod(SHARE, namespace="ignored")).ok()) == {}


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_pod_security_refuses_the_nodes_directory(release: Release, level: str) -> None:
    """Host paths are not allowed there: a sharing pod is refused, by Pod Security's own reason; others are not."""
    cluster = release.cluster
    security = {
        "runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    strict = [containers("main")[0] | {"securityContext": security}]
    with cluster.scratch_namespace(f"psa-{level}", {"pod-security.kubernetes.io/enforce": level}) as namespace:
        answer = cluster.create(pod(SHARE, namespace=namespace, containers=strict))
        assert answer.status == 403
        assert "hostPath" in answer.message
        cluster.create(pod(namespace=namespace, containers=strict)).ok()


def test_hamis_resources_become_kais_annotations(release: Release, team: str) -> None:
    del team
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"}
    asking = [containers("main")[0] | {"resources": {"limits": limits}}]
    stored = release.cluster.create(pod(schedulerName="kai-scheduler", containers=asking), user="tenant").ok()
    assert mounts(stored, "main") == MOUNTS
    assert stored["metadata"]["annotations"]["gpu-memory"] == "2048"
    assert not stored["spec"]["containers"][0]["resources"].get("limits")


def debug(stored: Object, **container: Any) -> Object:
    """The change that `kubectl debug` makes."""
    added = {"name": "debugger", "image": "example.invalid/none", **container}
    return {"spec": {"ephemeralContainers": [added]}, "metadata": {"name": stored["metadata"]["name"]}}


def test_a_debug_container_gets_its_targets_limit_or_no_gpu(release: Release, team: str) -> None:
    del team
    cluster = release.cluster
    for target, expected in (("main", MOUNTS), ("", set[str]())):
        stored = cluster.create(pod(SHARE), user="tenant").ok()
        change = debug(stored, **({"targetContainerName": target} if target else {}))
        path = path_of(pod_of(stored)) + "/ephemeralcontainers"
        (added,) = cluster.call("PATCH", path, change, content_type=STRATEGIC_PATCH).ok()["spec"]["ephemeralContainers"]
        assert {mount["mountPath"] for mount in added.get("volumeMounts", [])} & MOUNTS == expected
        variables = {item["name"]: item.get("value") for item in added["env"]}
        assert (variables.get("NVIDIA_VISIBLE_DEVICES") == "void") is (not expected)


def test_the_guard_takes_gpus_from_who_has_not_asked(release: Release, team: str) -> None:
    del team
    cluster = release.cluster
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "runc",
    }
    cluster.create(runtime).ok()
    try:
        taking = [containers("main")[0] | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
        stored = cluster.create(pod(runtimeClassName="nvidia", containers=taking), user="tenant").ok()
        assert stored["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        shared = cluster.create(pod(SHARE, runtimeClassName="nvidia", containers=containers("main side"))).ok()
        first, second = shared["spec"]["containers"]
        assert "NVIDIA_VISIBLE_DEVICES" not in {item["name"] for item in first["env"]}
        assert second["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        # An opt-out where it does not count: the share is capped, so the GPU is the pod's, whoever places it.
        with cluster.scratch_namespace("enforced-guard", {"kai-resource-isolator.io/isolation": "enforce"}):
            opted_out = pod(
                SHARE | {"kai-resource-isolator.io/inject": "false"}, "enforced-guard", runtimeClassName="nvidia",
                schedulerName="default-scheduler",
            )  # fmt: skip
            (capped,) = cluster.create(opted_out).ok()["spec"]["containers"]
            assert {mount["mountPath"] for mount in capped["volumeMounts"]} >= MOUNTS
            assert "NVIDIA_VISIBLE_DEVICES" not in {item["name"] for item in capped["env"]}
    finally:
        cluster.delete(runtime)
