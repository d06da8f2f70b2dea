"""The environment that a container's spec names."""

import pytest
from tests.node.environment import expand, resolve
from tests.node.objects import Api, Json, PodFailure

POD: Json = {
    "metadata": {"name": "pod", "namespace": "team", "uid": "u-1", "annotations": {"a/b": "1"}, "labels": {"l": "2"}},
    "spec": {"nodeName": "node"},
}
API = Api({("team", "gpu"): {"PORTION": "0.27", "EMPTY": ""}})


def reference(name: str, key: str, optional: bool | None = None) -> Json:
    chosen = {} if optional is None else {"optional": optional}
    return {"valueFrom": {"configMapKeyRef": {"name": name, "key": key, **chosen}}}


def field(path: str) -> Json:
    return {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ({"value": "x"}, "x"),
        ({}, ""),
        (reference("gpu", "PORTION"), "0.27"),
        (reference("gpu", "EMPTY"), ""),
        (reference("gpu", "PORTION", optional=True), "0.27"),
        (reference("gpu", "ABSENT", optional=True), None),
        (reference("absent", "PORTION", optional=True), None),
        (field("metadata.uid"), "u-1"),
        (field("metadata.name"), "pod"),
        (field("spec.nodeName"), "node"),
        (field("metadata.annotations['a/b']"), "1"),
        (field("metadata.labels['l']"), "2"),
        (field("metadata.annotations['absent']"), ""),
    ],
)
def test_value_of_an_entry(entry: Json, value: str | None) -> None:
    found = resolve(API, POD, {"name": "main", "env": [{"name": "V", **entry}]})
    assert found == ({} if value is None else {"V": value})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (reference("gpu", "ABSENT"), "couldn't find key ABSENT in ConfigMap team/gpu"),
        (reference("absent", "PORTION", optional=False), 'configmap "absent" not found'),
    ],
)
def test_what_is_missing_stops_the_container(entry: Json, message: str) -> None:
    with pytest.raises(PodFailure, match=message) as caught:
        resolve(API, POD, {"name": "main", "env": [{"name": "V", **entry}]})
    assert caught.value.reason == "CreateContainerConfigError"


def test_what_this_node_cannot_do_is_refused_by_name() -> None:
    entry = {"name": "V", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    with pytest.raises(PodFailure, match="env V: resourceFieldRef is not supported"):
        resolve(API, POD, {"name": "main", "env": [entry]})


def test_entries_win_over_sources_and_refer_to_what_came_before() -> None:
    container: Json = {
        "name": "main",
        "envFrom": [{"configMapRef": {"name": "gpu"}}, {"prefix": "P_", "configMapRef": {"name": "gpu"}}],
        "env": [
            {"name": "EMPTY", "value": "not any more"},
            {"name": "LATER", "value": "$(PORTION) $(LATEST)"},
            {"name": "LATEST", "value": "$(LATER)"},
        ],
    }
    assert resolve(API, POD, container) == {
        "PORTION": "0.27",
        "EMPTY": "not any more",
        "P_PORTION": "0.27",
        "P_EMPTY": "",
        "LATER": "0.27 $(LATEST)",
        "LATEST": "0.27 $(LATEST)",
    }


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$$$(A)", "$1"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == result
