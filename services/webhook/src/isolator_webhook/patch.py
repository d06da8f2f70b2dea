"""The JSON patch that gives each container its share: annotations, volumes, mounts, environment.

Pure: from a pod and what was decided to a list of operations. Applied to a pod that already has it, also after the API
server's defaulting, it is empty.
"""

import functools
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from isolator_core import names
from isolator_core.requests import Origin
from isolator_webhook import image_volumes, notices, translate, wanted
from isolator_webhook.basis import Basis
from isolator_webhook.decision import Share
from isolator_webhook.json_patch import Operation, append, pointer
from isolator_webhook.options import Options
from isolator_webhook.pod import (
    Container,
    EmptyDirVolume,
    EnvSource,
    HostPathVolume,
    ImageVolume,
    Pod,
    ProjectedVolume,
    Variable,
    Volume,
    VolumeMount,
    WrittenVariable,
    WrittenVolume,
    absolute,
)

_LIMITS_OF_ONE_DEVICE = frozenset(f"{names.LIMIT_KEY}_{device}" for device in range(16))
"""HAMi-core prefers these to CUDA_DEVICE_MEMORY_LIMIT (HAMi-core: 16 devices)."""


_name = attrgetter("name")


class Conflict(Exception):
    """The pod itself stands in the way. Its text names the field, the value and what is accepted."""


class Patch(msgspec.Struct, frozen=True):
    """The operations, and what the pod's author has to be told."""

    operations: list[Operation]
    notices: list[str]


def _same_volume(found: Volume, desired: WrittenVolume) -> bool:
    """Whether a volume of the pod is, the API server's defaults aside, the one that is desired."""
    pairs = (
        (found.host_path, desired.host_path, HostPathVolume),
        (found.image, desired.image, ImageVolume),
        (found.projected, desired.projected, ProjectedVolume),
        (found.empty_dir, desired.empty_dir, EmptyDirVolume),
    )
    for raw, source, kind in pairs:
        try:
            if (msgspec.json.decode(raw, type=kind | None) if bytes(raw) else None) != source:
                return False
        except msgspec.ValidationError:
            return False
    return True


def _patch_volumes(pod: Pod, desired: Iterable[WrittenVolume]) -> list[Operation]:
    found = {volume.name: (position, volume) for position, volume in enumerate(pod.spec.volumes or ())}
    operations = []
    missing = []
    for volume in desired:
        if volume.name not in found:
            missing.append(volume)
        elif not _same_volume(found[volume.name][1], volume):
            operations.append(Operation("replace", f"/spec/volumes/{found[volume.name][0]}", volume))
    return operations + append("/spec/volumes", pod.spec.volumes is None, missing)


def _is_ours(volume: str) -> bool:
    return volume in (names.VOLUME_LIB, names.VOLUME_PRELOAD) or volume.startswith(
        (names.VOLUME_LIMITS, names.VOLUME_REGION)
    )


@functools.lru_cache(maxsize=1024)
def _in_the_way(paths: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Every directory above one of these paths and the paths themselves; and beginnings of what is below them."""
    found = set(paths)
    for path in paths:
        while path != "/":
            path = posixpath.dirname(path)
            found.add(path)
    return frozenset(found), tuple(f"{path}/" for path in paths)


def patch_mounts(container: Container, where: str, desired: Mapping[str, VolumeMount]) -> list[Operation]:
    """Add the mounts, which are by path.

    Raises Conflict for a mount of the author's that would hide, change or borrow ours.
    """
    above, below = _in_the_way(tuple(desired))
    present = set()
    operations = []
    for position, mount in enumerate(container.volume_mounts or ()):
        path = absolute(mount.mount_path)
        own = desired.get(path)
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
        if path in above or path.startswith(below):
            raise Conflict(
                f"{_field(where)}.volumeMounts[{position}].mountPath is {mount.mount_path}: kai-resource-isolator "
                f"mounts {', '.join(desired)}, accepted is a path that is neither above nor below one of these"
            )
    missing = [mount for path, mount in desired.items() if path not in present]
    return operations + append(f"{where}/volumeMounts", container.volume_mounts is None, missing)


def _field(where: str) -> str:
    """A JSON pointer as people write a field: `/spec/containers/0` is `spec.containers[0]`."""
    _, spec, array, position = where.split("/")
    return f"{spec}.{array}[{position}]"


def _same_variable(found: Variable, desired: WrittenVariable) -> bool:
    """Whether a variable of the pod is, the API server's defaults aside, the one that is desired."""
    try:
        source = msgspec.json.decode(found.value_from, type=EnvSource | None) if bytes(found.value_from) else None
    except msgspec.ValidationError:
        return False
    return (found.value or "", source) == (desired.value or "", desired.value_from)


def patch_variables(
    container: Container, where: str, desired: Sequence[WrittenVariable], fixed: frozenset[str] = frozenset()
) -> tuple[list[Operation], list[str]]:
    """Add the variables that are missing, make right those that are `fixed`, remove those that would outdo the limit.

    The second part of the answer tells of what was the author's and is not any more.
    """
    env = container.env or []
    present = set(map(_name, env))
    outdoing: list[int] = []
    if not _LIMITS_OF_ONE_DEVICE.isdisjoint(present):
        outdoing = [position for position, variable in enumerate(env) if variable.name in _LIMITS_OF_ONE_DEVICE]
    wrong: list[int] = []
    right = {variable.name: variable for variable in desired if variable.name in fixed}
    if not present.isdisjoint(right):
        wrong = [
            position
            for position, variable in enumerate(env)
            if variable.name in right and not _same_variable(variable, right[variable.name])
        ]
    added = append(f"{where}/env", container.env is None, [one for one in desired if one.name not in present])
    if not outdoing and not wrong:
        return added, []
    operations = [Operation("replace", f"{where}/env/{position}", right[env[position].name]) for position in wrong]
    operations += [Operation("remove", f"{where}/env/{position}") for position in reversed(outdoing)]
    told = [
        f"container {container.name}: variable {env[position].name} was removed: the limit follows from what the pod "
        "asks for"
        for position in outdoing
    ]
    told += [
        f"container {container.name}: variable {env[position].name} was set to the pod's UID: it names the directory "
        "of the container's region"
        for position in wrong
    ]
    return operations + added, told


def _patch_annotations(pod: Pod, desired: dict[str, str]) -> list[Operation]:
    """Set annotations, and remove request annotations that the pod brought for other containers."""
    found = pod.annotations
    changed = {key: value for key, value in desired.items() if found.get(key) != value}
    stale = [key for key in found if key.startswith(names.REQUEST_ANNOTATION) and key not in desired]
    if pod.metadata.annotations is None:
        return [Operation("add", "/metadata/annotations", changed)] if changed else []
    return [Operation("remove", f"/metadata/annotations/{pointer(key)}") for key in stale] + [
        Operation("add", f"/metadata/annotations/{pointer(key)}", value) for key, value in changed.items()
    ]


def _notice_text(pod: Pod, told: Iterable[str]) -> str:
    """What the annotation holds after this pass: a line a notice, those of an earlier pass first."""
    earlier = pod.annotations.get(names.NOTICE_ANNOTATION, "").splitlines()
    return "\n".join(dict.fromkeys((*earlier, *(line for notice in told for line in notice.splitlines()))))


def build(pod: Pod, share: Share, basis: Basis, options: Options) -> Patch:
    """The patch that gives each request's container its share. Raises Conflict where the pod stands in the way."""
    by_kai = share.translate or all(request.origin is not Origin.HAMI for request in share.requests)
    told = [*share.notices, *([] if share.exempt else notices.of_basis(share.requests, basis, by_kai=by_kai))]
    if options.library_image is not None:
        told += image_volumes.notices(basis, options.library_image)
    annotations = wanted.annotations(options)
    containers: list[Operation] = []
    shares = {request.index: request for request in share.requests}
    for init, array in ((True, "initContainers"), (False, "containers")):
        for position, container in enumerate((pod.spec.init_containers if init else pod.spec.containers) or ()):
            where = f"/spec/{array}/{position}"
            request = shares.get(names.container_index(position, init=init))
            if request is None:
                patch_mounts(container, where, {})
                continue
            wants = wanted.of_container(request, basis, options, exempt=share.exempt)
            annotations[names.REQUEST_ANNOTATION + request.index] = wants.request_text
            if share.translate:
                annotations |= translate.annotations(request)
                containers += translate.resources(container, where, request, options.resources)
            containers += patch_mounts(container, where, wants.mounts)
            operations, removed = patch_variables(container, where, wants.variables, wanted.fixed(options))
            containers += operations
            told += removed
    if told:
        annotations[names.NOTICE_ANNOTATION] = _notice_text(pod, told)
    volumes = wanted.volumes(pod, share.requests, options, exempt=share.exempt)
    return Patch([*_patch_annotations(pod, annotations), *_patch_volumes(pod, volumes), *containers], told)
