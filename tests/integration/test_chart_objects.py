"""Every object of the golden outputs is one that API servers take, with no field that they do not know."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import programs
from tests.cluster.client import APPLY_PATCH, Cluster, Object
from tests.cluster.release import CHARTS

pytest_plugins = ["tests.cluster.fixtures"]
pytestmark = pytest.mark.cluster

GOLDEN = sorted(path.stem for path in (CHARTS / "golden").glob("*.yaml") if not path.stem.endswith(".values"))
CHECKED = {"fieldValidation": "Strict", "fieldManager": "test", "force": "true"}
OPERATOR = "monitoring.coreos.com/"
CERT_MANAGER = "cert-manager.io/"


def objects(case: str) -> list[Object]:
    every = yaml.safe_load_all((CHARTS / "golden" / f"{case}.yaml").read_text())
    return [item for item in every if not item["apiVersion"].startswith((OPERATOR, CERT_MANAGER))]


@pytest.fixture(scope="module")
def resources(cluster: Cluster) -> dict[tuple[str, str], tuple[str, bool]]:
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


@pytest.mark.parametrize("case", GOLDEN)
def test_the_api_server_takes_every_object(
    cluster: Cluster, resources: dict[tuple[str, str], tuple[str, bool]], case: str
) -> None:
    with cluster.scratch_namespace(f"objects-{GOLDEN.index(case)}") as namespace:
        for item in objects(case):
            where, namespaced = resources[item["apiVersion"], item["kind"]]
            path, plural = where.split("|")
            if namespaced:
                item["metadata"]["namespace"] = namespace
                path += f"/namespaces/{namespace}"
            # A pod's account must be there, so accounts alone are made.
            query = CHECKED | ({} if item["kind"] == "ServiceAccount" else {"dryRun": "All"})
            answer = cluster.call(
                "PATCH", f"{path}/{plural}/{item['metadata']['name']}", item, content_type=APPLY_PATCH, query=query
            )
            assert answer.status in (200, 201), f"{item['kind']} {item['metadata']['name']}: {answer.message}"
            assert answer.warnings == (), f"{item['kind']} {item['metadata']['name']}"


def openapi(kubernetes: str) -> dict[str, Any]:
    """The OpenAPI file of a pinned Kubernetes, out of its Go module."""
    module = programs.MODULES / f"kubernetes-{kubernetes}"
    listed = subprocess.run(
        ["go", "mod", "download", "-json", "k8s.io/kubernetes"], cwd=module, check=True, capture_output=True, text=True
    )
    file = Path(json.loads(listed.stdout)["Dir"]) / "api" / "openapi-spec" / "swagger.json"
    return dict(json.loads(file.read_text())["definitions"])


def problems(value: Any, schema: dict[str, Any], definitions: dict[str, Any], where: str) -> list[str]:
    """Unknown fields, missing required ones and wrong types."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
    if isinstance(value, dict):
        known = schema.get("properties")
        if known is None:
            inner = schema.get("additionalProperties", {})
            return [
                found for key, item in value.items() for found in problems(item, inner, definitions, f"{where}.{key}")
            ]
        found = [f"{where}.{key} is unknown" for key in value if key not in known]
        found += [f"{where}.{key} is missing" for key in schema.get("required", []) if key not in value]
        for key in value.keys() & known.keys():
            found += problems(value[key], known[key], definitions, f"{where}.{key}")
        return found
    if isinstance(value, list):
        items = schema.get("items", {})
        return [f for n, item in enumerate(value) for f in problems(item, items, definitions, f"{where}[{n}]")]
    kinds = {"string": str, "integer": int, "boolean": bool, "number": float, "object": dict, "array": list}
    kind = str(schema.get("type", ""))
    if not kind or value is None or schema.get("format") in ("int-or-string", "byte"):
        return []
    return [] if isinstance(value, kinds[kind]) else [f"{where} is {value!r}, not {kind}"]


@pytest.mark.parametrize("kubernetes", programs.KUBERNETES_VERSIONS)
def test_objects_fit_the_openapi_of_every_pinned_kubernetes(kubernetes: str) -> None:
    definitions = openapi(kubernetes)
    by_kind = {
        (f"{k['group']}/{k['version']}".lstrip("/"), k["kind"]): {"$ref": f"#/definitions/{name}"}
        for name, definition in definitions.items()
        for k in definition.get("x-kubernetes-group-version-kind", [])
    }
    found = []
    for case in GOLDEN:
        for item in objects(case):
            schema = by_kind[item["apiVersion"], item["kind"]]
            found += problems(item, schema, definitions, f"{case}: {item['kind']} {item['metadata']['name']}")
    assert found == []


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    definitions = openapi(programs.DEFAULT_KUBERNETES)
    service = {"$ref": "#/definitions/io.k8s.api.core.v1.Service"}
    given = {"spec": {"porst": [], "ports": [{"port": "x"}, {"name": "a"}]}}
    assert set(problems(given, service, definitions, "s")) == {
        "s.spec.ports[0].port is 'x', not integer",
        "s.spec.ports[1].port is missing",
        "s.spec.porst is unknown",
    }
