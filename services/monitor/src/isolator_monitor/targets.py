"""Where a container's files are on the node: by what the API server says of the pod, never by what a tenant wrote."""

import posixpath
import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from isolator_core import names
from isolator_core.request_file import RequestFileInvalid
from isolator_core.request_file import parse as parse_request
from isolator_monitor.pods import Container, Pod, Volume, VolumeMount

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Root(StrEnum):
    """A directory that the reader was given."""

    KUBELET = "kubelet"
    REGIONS = "regions"


class Place(msgspec.Struct, frozen=True):
    """A directory: names one below the other, from a root."""

    root: Root
    names: tuple[str, ...]


class Target(msgspec.Struct, frozen=True):
    """A container whose files are looked for."""

    uid: str
    container: str
    region: tuple[Place, ...]
    """Where the region can be, most likely first."""
    limits: Place | None
    """The volume with `request`, `uid` and KAI's limit."""


def targets(pods: Iterable[Pod], container_dir: str, *, by_name: bool = False) -> tuple[Target, ...]:
    """Every container that has a region or limits to look for, of every pod that has not ended.

    `by_name` also looks below the region roots for containers without mounts: right only where no tenant can make a
    directory there with the name of another's.
    """
    found = []
    for pod in pods:
        if pod.ended or not pod.metadata.uid:
            continue
        for index, container in pod.containers():
            region = region_places(pod, index, container, container_dir, by_name=by_name)
            limits = limits_place(pod, index)
            if region or limits:
                found.append(Target(pod.metadata.uid, container.name, region, limits))
    return tuple(found)


def limits_place(pod: Pod, index: str) -> Place | None:
    """Where the kubelet keeps the limits volume of a container."""
    volume = _volume(pod, names.VOLUME_LIMITS + index)
    if volume is None or volume.projected is None:
        return None
    return _kubelet(pod, "kubernetes.io~projected", volume.name)


def region_places(
    pod: Pod, index: str, container: Container, container_dir: str, *, by_name: bool = False
) -> tuple[Place, ...]:
    """Where the region can be: in the volume that the container mounts over the region's path.

    Volumes of the pod's own are below the kubelet's directory; of a hostPath, upstream's shared one among them, what
    follows its path is looked for below the region roots.
    """
    key = names.region_dir(pod.metadata.uid, container.name)
    named = (Place(Root.REGIONS, (key,)),)
    directory = posixpath.join(container_dir, names.CONTAINERS_DIR, "" if _is_mounted(pod, index) else key).rstrip("/")
    mount = mount_over(container, directory)
    volume = _volume(pod, mount.name) if mount else None
    if mount is None or volume is None:
        return named if by_name else ()
    below = _below(pod, container, mount, directory)
    if below is None:
        return ()
    if volume.empty_dir is not None:
        place = _kubelet(pod, "kubernetes.io~empty-dir", volume.name, *below)
        return (place, *named) if by_name else (place,)
    if volume.host_path is not None:
        return tuple(dict.fromkeys((Place(Root.REGIONS, below), *named)))
    return ()


def _is_mounted(pod: Pod, index: str) -> bool:
    """Whether `containers` is the region's own directory, by the container's request (`region=hostPath`)."""
    try:
        return parse_request(pod.annotations[names.REQUEST_ANNOTATION + index]).region == "hostPath"
    except (KeyError, RequestFileInvalid):
        return False


def mount_over(container: Container, path: str) -> VolumeMount | None:
    """The mount in which a container sees `path`: the deepest one above or at it."""
    covering = [
        mount
        for mount in container.volume_mounts or ()
        if path == normal(mount.mount_path) or path.startswith(normal(mount.mount_path).rstrip("/") + "/")
    ]
    return max(covering, key=lambda mount: len(normal(mount.mount_path)), default=None)


def normal(path: str) -> str:
    """A mount path as the kubelet resolves it."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _below(pod: Pod, container: Container, mount: VolumeMount, directory: str) -> tuple[str, ...] | None:
    """Names from the volume's top to a directory of the container, None where the kubelet's expansion is not known."""
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        known = variables(pod, container)
        if any(name not in known for name in _REFERENCE.findall(mount.sub_path_expr)):
            return None
        sub_path = _REFERENCE.sub(lambda match: known[match[1]], mount.sub_path_expr)
    rest = posixpath.relpath(directory, normal(mount.mount_path))
    return tuple(name for name in (*sub_path.split("/"), *rest.split("/")) if name not in ("", "."))


def variables(pod: Pod, container: Container) -> dict[str, str]:
    """Values of the container's variables as far as the pod alone tells them."""
    fields = {
        "metadata.uid": pod.metadata.uid,
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "spec.nodeName": pod.spec.node_name,
    }
    known: dict[str, str] = {}
    for variable in container.env or ():
        known.pop(variable.name, None)
        if variable.value is not None and "$(" not in variable.value:
            known[variable.name] = variable.value
        elif variable.value_from and variable.value_from.field_ref:
            path = variable.value_from.field_ref.field_path
            if path in fields:
                known[variable.name] = fields[path]
    return known


def _volume(pod: Pod, name: str) -> Volume | None:
    return next((volume for volume in pod.spec.volumes or () if volume.name == name), None)


def _kubelet(pod: Pod, plugin: str, *rest: str) -> Place:
    """A place in a pod's volume on the node (kubelet: `pods/<uid>/volumes/<plugin>/<volume>`)."""
    return Place(Root.KUBELET, ("pods", pod.metadata.uid, "volumes", plugin, *rest))
