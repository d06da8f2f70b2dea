"""What the kubelet reads from the API server: pods and ConfigMaps, as JSON objects."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON says it."""


class PodFailure(Exception):
    """A pod or a container that does not start. `reason` is the one that the kubelet gives in its event or status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass
class Api:
    """The API server, as far as a node sees it."""

    config_maps: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """Data of each ConfigMap by namespace and name."""


def unsupported(where: str, what: object) -> PodFailure:
    """Nothing in a spec is passed over in silence: what this node cannot do does not start."""
    return PodFailure("Unsupported", f"{where}: {what} is not supported by this test node")


def only(where: str, given: Json, *known: str) -> None:
    """Raise unless every field of `given` is one that the caller handles."""
    for key in given:
        if key not in known:
            raise unsupported(where, key)


def field_value(pod: Json, path: str) -> str:
    """Value of a downward API field of a pod; a missing annotation or label is empty.

    The whole of `metadata.annotations` or `metadata.labels` is `key="value"` a line, sorted
    (k8s.io/kubernetes: pkg/fieldpath).
    """
    metadata = pod["metadata"]
    for kind in ("annotations", "labels"):
        values = metadata.get(kind) or {}
        if path == f"metadata.{kind}":
            return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
        if path.startswith(f"metadata.{kind}['") and path.endswith("']"):
            return str(values.get(path.removeprefix(f"metadata.{kind}['").removesuffix("']"), ""))
    simple = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": pod["spec"].get("nodeName"),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName"),
    }
    if path not in simple:
        raise unsupported("fieldPath", path)
    return str(simple[path] or "")
