"""Containers that are added to a running pod (`kubectl debug`): the target's limit, or no GPU at all.

Only the ephemeral containers of a pod may change there, and they may mount what the pod has, whole
(Kubernetes: pkg/apis/core/validation, ValidatePodEphemeralContainersUpdate).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from isolator_core import names
from isolator_core.requests import Request
from isolator_webhook import guard, wanted
from isolator_webhook.basis import Basis
from isolator_webhook.decision import Share
from isolator_webhook.json_patch import Operation
from isolator_webhook.options import Options
from isolator_webhook.patch import Patch, patch_mounts, patch_variables
from isolator_webhook.pod import Container, Pod, Variable


def _managed(pod: Pod, request: Request, options: Options) -> bool:
    """Whether the pod was admitted with the volumes that cap this request's container."""
    present = {volume.name for volume in pod.spec.volumes or ()}
    needed = {mount.name for mount in wanted.mounts(request, options).values()}
    return needed <= present and names.REQUEST_ANNOTATION + request.index in pod.annotations


def _by_sub_path(pod: Pod, request: Request) -> str | None:
    """Which volume of ours the request's container mounts by a sub-path, which is forbidden here; None for none."""
    for volume in pod.spec.volumes or ():
        if volume.name == names.VOLUME_LIB and bytes(volume.image):
            return f"the library of {request.container} comes from an image, whose preload file"
        if volume.name == names.VOLUME_REGION + request.index and bytes(volume.host_path):
            return f"the memory of {request.container} is counted in a directory of the node, which"
    return None


def _instead(pod: Pod, shares: Mapping[str, Request]) -> str:
    """What gives a debugger the GPU, by the names of the containers with a share."""
    targets = [name for name, request in shares.items() if _by_sub_path(pod, request) is None]
    if targets or not shares:
        return f"a target (--target) with a share, {', '.join(targets) or 'which no container of this pod has'}"
    return f"a process in a container with a share (kubectl exec), {', '.join(shares)}"


def _as_written(variable: Variable) -> dict[str, Any]:
    """A variable as JSON has it, less what it does not say."""
    source = {"valueFrom": msgspec.json.decode(variable.value_from)} if bytes(variable.value_from) else {}
    return {"name": variable.name} | ({} if variable.value is None else {"value": variable.value}) | source


def _with_devices(container: Container, where: str, target: Container, added: list[Operation]) -> list[Operation]:
    """Operations on the variables, with those after which the container sees the target's GPUs and no others.

    Where the target does not say which, its image does, and so does the container's.
    """
    given = [variable for variable in target.env or () if variable.name == guard.DEVICES_VARIABLE]
    if not given:
        return added
    devices = _as_written(given[-1])
    own = [
        (position, variable)
        for position, variable in enumerate(container.env or ())
        if variable.name == guard.DEVICES_VARIABLE
    ]
    if not own:
        # The array is there by now: variables of ours are in it.
        return [*added, Operation("add", f"{where}/env/-", devices)]
    wrong = [position for position, variable in own if _as_written(variable) != devices]
    return [*(Operation("replace", f"{where}/env/{position}", devices) for position in wrong), *added]


def build(pod: Pod, before: Iterable[str], share: Share | None, basis: Basis, options: Options) -> Patch:
    """The patch for ephemeral containers that are not among the names `before`.

    Raises Conflict for one that mounts a volume of ours elsewhere, or something of its own where ours goes.
    """
    operations: list[Operation] = []
    told: list[str] = []
    shares = {request.container: request for request in (() if share is None else share.requests)}
    known = set(before)
    whole = replace(options, region="emptyDir", library_image=None)
    for position, container in enumerate(pod.spec.ephemeral_containers or ()):
        if container.name in known:
            continue
        where = f"/spec/ephemeralContainers/{position}"
        request = shares.get(container.target_container_name)
        if request is None or share is None or not _managed(pod, request, options):
            operations += [*patch_mounts(container, where, {}), *guard.void(container, where)]
            told.append(
                f"ephemeral container {container.name}: it sees no GPU ({guard.DEVICES_VARIABLE}=void): accepted for a "
                f"GPU is {_instead(pod, shares)}"
            )
            continue
        reason = _by_sub_path(pod, request)
        if reason is not None:
            operations += [*patch_mounts(container, where, {}), *guard.void(container, where)]
            told.append(
                f"ephemeral container {container.name}: it sees no GPU ({guard.DEVICES_VARIABLE}=void): {reason} only "
                "containers of the pod's spec can mount; accepted for a GPU is a process in that one (kubectl exec)"
            )
            continue
        operations += patch_mounts(container, where, wanted.mounts(request, whole))
        desired = wanted.variables(request, basis, options, exempt=share.exempt)
        added, removed = patch_variables(container, where, desired)
        target = pod.spec.container(request.position, init=request.init)
        operations += _with_devices(container, where, target, added)
        told += removed
        right = container.may_unmount()
        if right is not None:
            told.append(f"ephemeral container {container.name}: {right} lets it unmount what caps it")
    return Patch(operations, told)
