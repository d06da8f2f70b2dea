"""Which pods of a node mount the files: as long as there are any, the files must stay."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlencode

from isolator_core.errors import SettingsError
from isolator_core.names import LIBRARY_FILE, PRELOAD_FILE
from isolator_libsync.api import Api

PAGE = 500
_ENDED = ("Succeeded", "Failed")
"""Phases after which no container of the pod starts again (Kubernetes: Pod Lifecycle, "Pod phase")."""


def naming(pods: Iterable[Mapping[str, Any]], host_dir: Path) -> list[str]:
    """`namespace/name` of each pod that is not over and mounts one of the files from this directory of the node."""
    files = {PurePosixPath(host_dir / name) for name in (LIBRARY_FILE, PRELOAD_FILE)}
    found = []
    for pod in pods:
        volumes = pod.get("spec", {}).get("volumes") or []
        paths = {PurePosixPath(volume["hostPath"]["path"]) for volume in volumes if volume.get("hostPath")}
        if paths & files and pod.get("status", {}).get("phase") not in _ENDED:
            metadata = pod["metadata"]
            found.append(f"{metadata.get('namespace', 'default')}/{metadata['name']}")
    return sorted(found)


def from_api(api: Api, node_name: str) -> list[dict[str, Any]]:
    """The pods of this node. Raises ApiError."""
    query = {"fieldSelector": f"spec.nodeName={node_name}", "limit": str(PAGE)}
    pods: list[dict[str, Any]] = []
    while True:
        page = api.request("GET", f"/api/v1/pods?{urlencode(query)}")
        pods += page["items"]
        following = page["metadata"].get("continue")
        if not following:
            return pods
        query["continue"] = following


def from_file(path: Path) -> list[dict[str, Any]]:
    """The pods of a Kubernetes PodList in JSON. Raises SettingsError."""
    where = f"--pods-file (ISOLATOR_LIBSYNC_PODS_FILE) is {str(path)!r}"
    accepted = "accepted is a PodList in JSON, as `kubectl get pods -o json` prints it"
    try:
        items = json.loads(path.read_bytes())["items"]
    except OSError as error:
        raise SettingsError(f"{where}, which cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{where}: {accepted}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) and "metadata" in item for item in items):
        raise SettingsError(f"{where}: {accepted}")
    return items
