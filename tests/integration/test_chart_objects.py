"""Every object that the chart can render is one that API servers take, with no field that they do not know."""

import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cluster import definitions, modules
from tests.cluster.client import APPLY_PATCH, Cluster, Object, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import UMBRELLA
from tests.cluster.rendering import GOLDEN, WITH_OPERATOR, fits, golden_values, template

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = [pytest.mark.cluster, pytest.mark.every_change]

CHECKED = {"fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
OTHERS = ("monitoring.coreos.com/", "cert-manager.io/")
"""API groups that Kubernetes itself does not have."""

OF_PROMETHEUS_OPERATOR = [
    f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
    for kind in ("podmonitors", "servicemonitors", "prometheusrules")
]
OF_CERT_MANAGER = [f"deploy/crds/cert-manager.io_{kind}.yaml" for kind in ("certificates", "issuers")]

Resources = dict[tuple[str, str], tuple[str, bool]]


@pytest.fixture(scope="module")
def others(cluster: Cluster, plane: ControlPlane) -> Iterator[None]:
    """The server knows the kinds of Prometheus Operator and cert-manager."""
    del plane
    with (
        definitions.served(cluster, modules.PROMETHEUS_OPERATOR, OF_PROMETHEUS_OPERATOR),
        definitions.served(cluster, modules.CERT_MANAGER, OF_CERT_MANAGER),
    ):
        yield


def resources(cluster: Cluster) -> Resources:
    """Path and scope of each kind that the server has."""
    found = {}
    groups = cluster.call("GET", "/apis").ok()["groups"]
    versions = {"v1": "/api/v1"}
    versions |= {v["groupVersion"]: f"/apis/{v['groupVersion']}" for group in groups for v in group["versions"]}
    for version, path in versions.items():
        for resource in cluster.call("GET", path).ok()["resources"]:
            if "/" not in resource["name"]:
                found[version, resource["kind"]] = (f"{path}|{resource['name']}", resource["namespaced"])
    return found


def path_in(found: Resources, item: Object, namespace: str) -> str:
    """Where an object goes that is put into `namespace`, if its kind has one."""
    where, namespaced = found[item["apiVersion"], item["kind"]]
    path, plural = where.split("|")
    if namespaced:
        item["metadata"]["namespace"] = namespace
        path += f"/namespaces/{namespace}"
    return f"{path}/{plural}/{item['metadata']['name']}"


def rendered(cluster: Cluster, case: str) -> list[Object]:
    """What a release on this server would consist of, its test pod with all that it needs included."""
    version = ".".join(map(str, (*cluster.version(), 0)))
    if not fits(case, version):
        pytest.skip(f"the chart refuses {case} for Kubernetes {version}, as test_chart_values shows")
    return template(golden_values(case), UMBRELLA, *WITH_OPERATOR, kube_version=version)


@pytest.mark.parametrize("case", GOLDEN)
def test_the_api_server_stores_every_object(cluster: Cluster, others: None, case: str) -> None:
    del others
    known = resources(cluster)
    with ExitStack() as stack:
        namespace = stack.enter_context(cluster.scratch_namespace(f"stored-{GOLDEN.index(case)}"))
        objects = rendered(cluster, case)
        # A pod's account must be there before it.
        for item in sorted(objects, key=lambda item: item["kind"] != "ServiceAccount"):
            path = path_in(known, item, namespace)
            stack.callback(cluster.call, "DELETE", path, query={"gracePeriodSeconds": "0"})
            answer = cluster.call("PATCH", path, item, content_type=APPLY_PATCH, query=CHECKED)
            assert answer.status == 201, f"{item['kind']} {item['metadata']['name']}: {answer.message}"
            assert answer.warnings == (), f"{item['kind']} {item['metadata']['name']}"
        for item in objects:
            if item["kind"] == "Deployment":
                wait_until(functools.partial(has_its_pods, cluster, path_in(known, item, namespace)), "the pods")


def has_its_pods(cluster: Cluster, path: str) -> bool:
    """Whether a Deployment's pods were all admitted. Raises AssertionError with the reason if one is refused."""
    stored = cluster.call("GET", path).ok()
    status = stored.get("status", {})
    refused = [item["message"] for item in status.get("conditions", []) if item["type"] == "ReplicaFailure"]
    assert refused == []
    # A Deployment that an autoscaler scales says no number.
    return bool(status.get("updatedReplicas", 0) == stored["spec"].get("replicas", 1))


@pytest.mark.parametrize("case", GOLDEN)
def test_the_api_server_of_someone_else_would_take_every_object(cluster: Cluster, case: str) -> None:
    """As a dry run, so that it can be asked of the cluster of KUBECONFIG too."""
    known = resources(cluster)
    with cluster.scratch_namespace(f"objects-{GOLDEN.index(case)}") as namespace:
        for item in rendered(cluster, case):
            if item["apiVersion"].startswith(OTHERS):
                continue
            path = path_in(known, item, namespace)
            # A pod's account must be there, so accounts alone are made.
            query = CHECKED | ({} if item["kind"] == "ServiceAccount" else {"dryRun": "All"})
            answer = cluster.call("PATCH", path, item, content_type=APPLY_PATCH, query=query)
            assert answer.status in (200, 201), f"{item['kind']} {item['metadata']['name']}: {answer.message}"
            assert answer.warnings == (), f"{item['kind']} {item['metadata']['name']}"


@functools.cache
def openapi(kubernetes: str) -> dict[str, Any]:
    """What Kubernetes publishes about its objects: definitions by their name."""
    return dict(json.loads(modules.openapi(kubernetes).read_text())["definitions"])


def problems(value: Any, schema: dict[str, Any], defined: dict[str, Any], where: str) -> list[str]:
    """Unknown fields, missing required ones and wrong types."""
    if "$ref" in schema:
        schema = defined[schema["$ref"].removeprefix("#/definitions/")]
    if isinstance(value, dict):
        known = schema.get("properties")
        if known is None:
            inner = schema.get("additionalProperties", {})
            return [found for key, item in value.items() for found in problems(item, inner, defined, f"{where}.{key}")]
        found = [f"{where}.{key} is unknown" for key in value if key not in known]
        found += [f"{where}.{key} is missing" for key in schema.get("required", []) if key not in value]
        for key in value.keys() & known.keys():
            found += problems(value[key], known[key], defined, f"{where}.{key}")
        return found
    if isinstance(value, list):
        items = schema.get("items", {})
        return [f for n, item in enumerate(value) for f in problems(item, items, defined, f"{where}[{n}]")]
    kinds = {"string": str, "integer": int, "boolean": bool, "number": float, "object": dict, "array": list}
    kind = str(schema.get("type", ""))
    if not kind or value is None or schema.get("format") in ("int-or-string", "byte"):
        return []
    return [] if isinstance(value, kinds[kind]) else [f"{where} is {value!r}, not {kind}"]


@pytest.mark.parametrize("kubernetes", modules.KUBERNETES)
def test_objects_fit_the_openapi_of_every_kubernetes(kubernetes: str) -> None:
    by_kind = {
        (f"{k['group']}/{k['version']}".lstrip("/"), k["kind"]): {"$ref": f"#/definitions/{name}"}
        for name, definition in openapi(kubernetes).items()
        for k in definition.get("x-kubernetes-group-version-kind", [])
    }
    found = []
    for case in (case for case in GOLDEN if fits(case, kubernetes)):
        for item in template(golden_values(case), kube_version=kubernetes):
            if not item["apiVersion"].startswith(OTHERS):
                where = f"{case}: {item['kind']} {item['metadata']['name']}"
                schema = by_kind.get((item["apiVersion"], item["kind"]))
                found += problems(item, schema, openapi(kubernetes), where) if schema else [f"{where} is of no kind"]
    assert found == []


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    defined = openapi(modules.KUBERNETES[-1])
    service = {"$ref": "#/definitions/io.k8s.api.core.v1.Service"}
    given = {"spec": {"porst": [], "ports": [{"port": "x"}, {"name": "a"}]}}
    assert set(problems(given, service, defined, "s")) == {
        "s.spec.ports[0].port is 'x', not integer",
        "s.spec.ports[1].port is missing",
        "s.spec.porst is unknown",
    }
