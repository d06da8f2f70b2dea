"""The JSON patch that gives each container its share: annotations, volumes, mounts, environment.

Pure: from a pod and its requests to a list of operations. Applied to a pod that already has it, also after the API
server's defaulting, it is empty.
"""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from isolator_core import names, request_file
from isolator_core.requests import Fraction, Request
from isolator_webhook.basis import Basis, Known
from isolator_webhook.options import Options
from isolator_webhook.pod import (
    ConfigMapSource,
    Container,
    DownwardItem,
    DownwardSource,
    EmptyDirVolume,
    EnvSource,
    FieldRef,
    HostPathVolume,
    KeyItem,
    Pod,
    ProjectedSource,
    ProjectedVolume,
    Volume,
    VolumeMount,
    WrittenVariable,
    WrittenVolume,
)

KAI_CONFIG_MAP_ANNOTATION = "runai/shared-gpu-configmap"
"""Prefix of the ConfigMaps in which KAI's binder leaves what a container was given (KAI: gpusharingconfigmap)."""


class Conflict(Exception):
    """The pod itself stands in the way. Its text names the field, the value and what is accepted."""


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One JSON Patch operation (RFC 6902)."""

    op: str
    path: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Patch:
    """The operations, and what the pod's author has to be told."""

    operations: list[Operation]
    notices: list[str]


def _pointer(part: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def product_mib(fraction: Fraction, basis_mib: int) -> int:
    """MiB that a fraction is of a basis, truncated, and at least 1: `0m` means no limit to HAMi-core."""
    return max(1, int(Decimal(fraction.decimal) * basis_mib))


def request_text(request: Request) -> str:
    """Text of the `request` file of one container."""
    return request_file.build(
        request_file.RequestFile(
            container=request.container,
            memory_mib=None if isinstance(request.memory, Fraction) else request.memory.mib,
            fraction=request.memory.decimal if isinstance(request.memory, Fraction) else None,
            devices=request.devices,
            cores=request.cores,
            priority=request.priority,
        )
    )


def _size(mib: int) -> str:
    """A size as the API server writes it back: with the largest binary suffix that leaves an integer."""
    suffixes = ["Mi", "Gi", "Ti"]
    while mib % 1024 == 0 and len(suffixes) > 1:
        mib //= 1024
        suffixes.pop(0)
    return f"{mib}{suffixes[0]}"


def _limits_volume(pod: Pod, request: Request) -> WrittenVolume:
    annotation = f"metadata.annotations['{names.REQUEST_ANNOTATION}{request.index}']"
    sources = [
        ProjectedSource(
            downward_api=DownwardSource(
                [
                    DownwardItem(names.REQUEST_FILE, FieldRef(annotation)),
                    DownwardItem(names.UID_FILE, FieldRef("metadata.uid")),
                ]
            )
        )
    ]
    prefix = pod.annotations.get(KAI_CONFIG_MAP_ANNOTATION)
    if prefix:
        sources.append(
            ProjectedSource(
                config_map=ConfigMapSource(
                    name=f"{prefix}-{request.index}",
                    items=[KeyItem(names.LIMIT_KEY, names.LIMIT_KEY)],
                    optional=True,
                )
            )
        )
    return WrittenVolume(names.VOLUME_LIMITS + request.index, projected=ProjectedVolume(sources))


def _wanted_volumes(pod: Pod, requests: Iterable[Request], options: Options) -> list[WrittenVolume]:
    volumes = [
        WrittenVolume(volume, host_path=HostPathVolume(posixpath.join(options.host_dir, file), type="File"))
        for volume, file in ((names.VOLUME_LIB, names.LIBRARY_FILE), (names.VOLUME_PRELOAD, names.PRELOAD_FILE))
    ]
    for request in requests:
        volumes.append(_limits_volume(pod, request))
        region = EmptyDirVolume(size_limit=_size(options.region_size_mib))
        volumes.append(WrittenVolume(names.VOLUME_REGION + request.index, empty_dir=region))
    return volumes


def _wanted_mounts(request: Request, options: Options) -> list[VolumeMount]:
    def inside(name: str) -> str:
        return posixpath.join(options.container_dir, name)

    return [
        VolumeMount(names.VOLUME_LIB, inside(names.LIBRARY_FILE), read_only=True),
        VolumeMount(names.VOLUME_PRELOAD, names.PRELOAD_PATH, read_only=True),
        VolumeMount(names.VOLUME_LIMITS + request.index, inside(names.LIMITS_DIR), read_only=True),
        VolumeMount(names.VOLUME_REGION + request.index, inside(names.CONTAINERS_DIR)),
    ]


def _limit_variable(request: Request, basis: Basis) -> str | None:
    """Value of `CUDA_DEVICE_MEMORY_LIMIT` for other tools and libraries, None where it cannot be known."""
    if not isinstance(request.memory, Fraction):
        return f"{request.memory.mib}m"
    return f"{product_mib(request.memory, basis.mib)}m" if isinstance(basis, Known) else None


def _wanted_variables(request: Request, basis: Basis, options: Options) -> list[WrittenVariable]:
    variables = [
        WrittenVariable("POD_UID", value_from=EnvSource(FieldRef("metadata.uid"))),
        WrittenVariable("CONTAINER_NAME", value=request.container),
        WrittenVariable("CONTAINER_VGPU_MOUNT", value=options.container_dir),
    ]
    limit = _limit_variable(request, basis)
    if limit is not None:
        variables.append(WrittenVariable(names.LIMIT_KEY, value=limit))
    return variables


def _same_volume(found: Volume, wanted: WrittenVolume) -> bool:
    """Whether a volume of the pod is, the API server's defaults aside, the one that is wanted."""
    pairs = (
        (found.host_path, wanted.host_path, HostPathVolume),
        (found.projected, wanted.projected, ProjectedVolume),
        (found.empty_dir, wanted.empty_dir, EmptyDirVolume),
    )
    for raw, source, kind in pairs:
        try:
            if (msgspec.json.decode(raw, type=kind | None) if bytes(raw) else None) != source:
                return False
        except msgspec.ValidationError:
            return False
    return True


def _append(array: str, missing: bool, values: Sequence[Any]) -> list[Operation]:
    """Operations that append to an array, which is made where it is missing."""
    if not values:
        return []
    if missing:
        return [Operation("add", array, list(values))]
    return [Operation("add", f"{array}/-", value) for value in values]


def _patch_volumes(pod: Pod, wanted: Iterable[WrittenVolume]) -> list[Operation]:
    found = {volume.name: (position, volume) for position, volume in enumerate(pod.spec.volumes or ())}
    operations = []
    missing = []
    for volume in wanted:
        if volume.name not in found:
            missing.append(volume)
        elif not _same_volume(found[volume.name][1], volume):
            operations.append(Operation("replace", f"/spec/volumes/{found[volume.name][0]}", volume))
    return operations + _append("/spec/volumes", pod.spec.volumes is None, missing)


def _is_ours(volume: str) -> bool:
    return volume in (names.VOLUME_LIB, names.VOLUME_PRELOAD) or volume.startswith(
        (names.VOLUME_LIMITS, names.VOLUME_REGION)
    )


def _absolute(path: str) -> str:
    """A mount path as the kubelet resolves it."""
    return posixpath.normpath("/" + path).replace("//", "/")


def _above(path: str, other: str) -> bool:
    return path == other or other.startswith(path.rstrip("/") + "/")


def _patch_mounts(container: Container, where: str, wanted: Sequence[VolumeMount]) -> list[Operation]:
    """Add the wanted mounts. Raises Conflict for a mount of the author's that would hide, change or borrow ours."""
    by_path = {mount.mount_path: mount for mount in wanted}
    present = set()
    operations = []
    for position, mount in enumerate(container.volume_mounts or ()):
        path = _absolute(mount.mount_path)
        own = by_path.get(path)
        if own is not None and own.name == mount.name:
            present.add(path)
            if mount != own:
                operations.append(Operation("replace", f"{where}/volumeMounts/{position}", own))
            continue
        if _is_ours(mount.name):
            raise Conflict(
                f"{_field(where)}.volumeMounts[{position}] mounts the volume {mount.name} at {mount.mount_path}: "
                "volumes of that name belong to kai-resource-isolator, accepted is any other volume"
            )
        for ours in by_path:
            if _above(path, ours) or _above(ours, path):
                raise Conflict(
                    f"{_field(where)}.volumeMounts[{position}].mountPath is {mount.mount_path}: kai-resource-isolator "
                    f"mounts {ours} there, accepted is a path that is neither above nor below it"
                )
    missing = [mount for path, mount in by_path.items() if path not in present]
    return operations + _append(f"{where}/volumeMounts", container.volume_mounts is None, missing)


def _field(where: str) -> str:
    """A JSON pointer as people write a field: `/spec/containers/0` is `spec.containers[0]`."""
    _, spec, array, position = where.split("/")
    return f"{spec}.{array}[{position}]"


def _patch_variables(container: Container, where: str, wanted: Iterable[WrittenVariable]) -> list[Operation]:
    found = {variable.name for variable in container.env or ()}
    missing = [variable for variable in wanted if variable.name not in found]
    return _append(f"{where}/env", container.env is None, missing)


def _patch_annotations(pod: Pod, wanted: dict[str, str]) -> list[Operation]:
    """Set annotations, and remove request annotations that the pod brought for other containers."""
    found = pod.annotations
    changed = {key: value for key, value in wanted.items() if found.get(key) != value}
    stale = [key for key in found if key.startswith(names.REQUEST_ANNOTATION) and key not in wanted]
    if pod.metadata.annotations is None:
        return [Operation("add", "/metadata/annotations", changed)] if changed else []
    return [Operation("remove", f"/metadata/annotations/{_pointer(key)}") for key in stale] + [
        Operation("add", f"/metadata/annotations/{_pointer(key)}", value) for key, value in changed.items()
    ]


def _notices(requests: Iterable[Request], basis: Basis) -> list[str]:
    return [
        f"container {request.container}: gpu-fraction {request.memory.decimal} is enforced by the memory of the card "
        f"that it meets, but {names.LIMIT_KEY} is not set in its environment: {basis.reason}"
        for request in requests
        if isinstance(request.memory, Fraction) and not isinstance(basis, Known)
    ]


def _notice_text(pod: Pod, notices: Iterable[str]) -> str:
    """What the annotation holds after this pass: a line a notice, those of an earlier pass first."""
    earlier = pod.annotations.get(names.NOTICE_ANNOTATION, "").splitlines()
    return "\n".join(dict.fromkeys((*earlier, *notices)))


def build(pod: Pod, requests: Sequence[Request], basis: Basis, options: Options) -> Patch:
    """The patch that gives each request's container its share. Raises Conflict where the pod stands in the way."""
    notices = _notices(requests, basis)
    annotations = {names.REQUEST_ANNOTATION + request.index: request_text(request) for request in requests}
    if notices:
        annotations[names.NOTICE_ANNOTATION] = _notice_text(pod, notices)
    operations = _patch_annotations(pod, annotations)
    operations += _patch_volumes(pod, _wanted_volumes(pod, requests, options))
    shares = {request.index: request for request in requests}
    for init, array in ((True, "initContainers"), (False, "containers")):
        for position, container in enumerate((pod.spec.init_containers if init else pod.spec.containers) or ()):
            where = f"/spec/{array}/{position}"
            request = shares.get(names.container_index(position, init=init))
            if request is None:
                _patch_mounts(container, where, ())
                continue
            operations += _patch_mounts(container, where, _wanted_mounts(request, options))
            operations += _patch_variables(container, where, _wanted_variables(request, basis, options))
    return Patch(operations, notices)
