"""RBAC of the chart is what its services use, each right no more and no less; certificates rotate under load."""

import base64
import itertools
import json
from collections.abc import Iterator

import pytest
from tests.cluster.client import MERGE_PATCH, Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.load import admissions
from tests.cluster.release import NAME, Release, installed

from isolator_testing.tools import require_root

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]

NAMESPACE = "isolator-rights"
SOON = ["--settle-seconds=5", "--certificate-poll-seconds=1"]
"""How long an authority is announced before a certificate of it is served: seconds, for the one API server here."""

ROTATE = "kai-resource-isolator.io/rotate"

Right = tuple[str, str, str]
"""Service, resource with its subresource, verb."""

SHARING: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "p-", "namespace": "default", "annotations": {"gpu-memory": "1024"}},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/none"}]},
}

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}-"


def is_limited(stored: Object) -> bool:
    return any(mount["mountPath"] == "/etc/ld.so.preload" for mount in stored["spec"]["containers"][0]["volumeMounts"])


@pytest.fixture(scope="module")
def release(cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release that marks its node and rotates within seconds."""
    require_root()
    values = {
        "webhook": {"extraArgs": SOON},
        "librarySync": {"nodeLabel": "example.org/right", "nodeCondition": "example.org/Right"},
    }
    with installed(cluster, plane, tmp_path_factory.mktemp("node"), NAMESPACE, values) as running:
        yield running


def test_certificate_and_authority_rotate_under_load_and_no_admission_fails(release: Release) -> None:
    """Sharing pods come in from several clients at once all the time, while each is renewed three times."""
    cluster = release.cluster
    bundles = [bundle(cluster)]

    def one_new_authority() -> bool:
        now = bundle(cluster)
        if now != bundles[-1]:
            bundles.append(now)
        return len(now) == 1 and now != first

    with admissions(cluster, SHARING, is_limited) as load:
        for _ in range(3):
            ask_for(cluster, "leaf")
            first = bundles[-1]
            ask_for(cluster, "ca")
            wait_until(one_new_authority, "the new authority alone", 300)
    assert load.refused == {}
    assert load.admitted > 100
    # Each bundle has an authority of the one before: one, that and the next, the next alone.
    assert all(before & after for before, after in itertools.pairwise(bundles))
    assert [len(found) for found in bundles] == [1, 2, 1, 2, 1, 2, 1]


def ask_for(cluster: Cluster, what: str) -> None:
    """Ask for a new certificate as the README says, and wait until the wish is granted."""
    secret = {"kind": "Secret", "metadata": {"name": f"{NAME}-webhook-certificate", "namespace": NAMESPACE}}
    wish = {"metadata": {"annotations": {ROTATE: what}}}
    cluster.call("PATCH", path_of(secret), wish, content_type=MERGE_PATCH).ok()

    def granted() -> bool:
        return ROTATE not in cluster.get(secret).ok()["metadata"].get("annotations", {})

    wait_until(granted, f"a new {what}", 300)


def bundle(cluster: Cluster) -> frozenset[str]:
    configuration = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": f"{NAME}-mutating"}}
    return authorities(cluster.get(configuration).ok()["webhooks"][0]["clientConfig"]["caBundle"])


def authorities(bundle: str) -> frozenset[str]:
    """The certificates of a CA bundle, in whatever order."""
    return frozenset(part for part in base64.b64decode(bundle).decode().split("-----BEGIN CERTIFICATE-----") if part)


def entries(plane: ControlPlane) -> Iterator[Object]:
    """What the services' accounts have asked of the API server."""
    with plane.audit_log.open() as log:
        # Of hundreds of megabytes most are of others, and the last line may be half written.
        lines = [line for line in log if ACCOUNT in line and line.endswith("\n")]
    for entry in map(json.loads, lines):
        # Without a name is who was not let in, such as a pod that is ending and whose token ended with its object.
        if entry["user"].get("username", "").startswith(ACCOUNT) and "objectRef" in entry:
            yield entry


def used(plane: ControlPlane) -> set[Right]:
    result = set()
    for entry in entries(plane):
        reference = entry["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        result.add((entry["user"]["username"].removeprefix(ACCOUNT), resource, entry["verb"]))
    return result


def granted(release: Release) -> set[Right]:
    """Of the roles that the chart binds; each is named after the workload whose account it is for."""
    result = set()
    for item in release.objects():
        if item["kind"] in ("Role", "ClusterRole"):
            part = item["metadata"]["labels"]["app.kubernetes.io/component"]
            result |= {
                (part, resource, verb)
                for rule in item["rules"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return result


def test_every_right_is_used_and_nothing_is_refused(release: Release, plane: ControlPlane) -> None:
    cluster = release.cluster
    # What makes the monitor write an Event: a pod of its node that asked for a share and came in without mounts.
    unlimited: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "unlimited",
            "namespace": "kube-system",
            "annotations": {"gpu-memory": "1024"},
        },
        "spec": {"nodeName": release.node.name, "containers": [{"name": "main", "image": "example.invalid/none"}]},
    }
    cluster.create(unlimited).ok()
    running = {"status": {"phase": "Running"}}
    cluster.call("PATCH", path_of(unlimited) + "/status", running, content_type=MERGE_PATCH).ok()
    wanted = granted(release)
    try:
        # Each right is used by now, but that of the monitor to write an Event.
        wait_until(lambda: ("monitor", "events", "create") in used(plane), "Event of the monitor")
    finally:
        cluster.delete(unlimited)
    assert used(plane) == wanted
    refused = [entry for entry in entries(plane) if entry["responseStatus"]["code"] == 403]
    assert refused == []


def test_rights_on_secrets_and_webhooks_are_for_one_name(release: Release) -> None:
    for item in release.objects():
        for rule in item.get("rules", []):
            if set(rule["resources"]) & {"secrets", "leases", "mutatingwebhookconfigurations"}:
                assert len(rule["resourceNames"]) == 1
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_accounts_may_do_nothing_else(release: Release) -> None:
    """Asked of the API server itself, for what would hurt most."""
    cluster = release.cluster
    worst = [
        ("get", "", "secrets"),
        ("create", "", "pods"),
        ("update", "", "nodes"),
        ("patch", "", "pods"),
        ("list", "", "configmaps"),
    ]
    for part in ("webhook", "vramd", "libsync", "monitor"):
        for verb, group, resource in worst:
            asked = {"verb": verb, "group": group, "resource": resource, "namespace": "default"}
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                      "spec": {"user": f"{ACCOUNT}{part}", "resourceAttributes": asked}}  # fmt: skip
            answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).ok()
            assert not answer["status"]["allowed"], (part, verb, resource)
