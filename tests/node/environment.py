"""The environment of a container from its spec, without service links.

As the kubelet makes it (k8s.io/kubernetes: pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables).
"""

import re
from collections.abc import Mapping

from tests.node.objects import Api, Json, PodFailure, field_value, only, unsupported

_REFERENCE = re.compile(r"\$(?:(?P<escaped>\$)|\((?P<name>[^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; an unknown name stays as it is and `$$` is a dollar sign.

    k8s.io/kubernetes: third_party/forked/golang/expansion.
    """

    def value(match: re.Match[str]) -> str:
        return "$" if match["escaped"] else variables.get(match["name"], match[0])

    return _REFERENCE.sub(value, text)


def resolve(api: Api, pod: Json, container: Json) -> dict[str, str]:
    """Environment that the spec of `container` names.

    Raises PodFailure with reason CreateContainerConfigError for a ConfigMap or key that is missing and not optional.
    """
    result: dict[str, str] = {}
    for source in container.get("envFrom", []):
        only("envFrom", source, "prefix", "configMapRef")
        data = _config_map(api, pod, source["configMapRef"])
        result |= {source.get("prefix", "") + key: value for key, value in (data or {}).items()}
    for entry in container.get("env", []):
        only(f"env {entry['name']}", entry, "name", "value", "valueFrom")
        if "valueFrom" in entry:
            value = _value_from(api, pod, entry["name"], entry["valueFrom"])
            if value is not None:
                result[entry["name"]] = value
        else:
            result[entry["name"]] = expand(entry.get("value", ""), result)
    return result


def _value_from(api: Api, pod: Json, name: str, source: Json) -> str | None:
    only(f"env {name}", source, "fieldRef", "configMapKeyRef")
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    reference = source["configMapKeyRef"]
    data = _config_map(api, pod, reference)
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional"):
        return None
    namespace = pod["metadata"]["namespace"]
    raise PodFailure(
        "CreateContainerConfigError",
        f"couldn't find key {reference['key']} in ConfigMap {namespace}/{reference['name']}",
    )


def _config_map(api: Api, pod: Json, reference: Json) -> dict[str, str] | None:
    if "name" not in reference:
        raise unsupported("environment", reference)
    data = api.config_maps.get((pod["metadata"]["namespace"], reference["name"]))
    if data is None and not reference.get("optional"):
        raise PodFailure("CreateContainerConfigError", f'configmap "{reference["name"]}" not found')
    return data
