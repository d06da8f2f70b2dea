"""The guard: containers that reach a GPU without having asked for one.

What authorises a container is what a tenant cannot write for free: a share that is capped, or that its scheduler alone
gives; a GPU or MIG resource; a claim of dynamic resource allocation; or a namespace that the operator named. No label
does.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from isolator_core import requests
from isolator_core.go_numbers import parse_quantity
from isolator_core.names import container_index
from isolator_core.requests import per_container
from isolator_core.requests.model import GPU_RESOURCE
from isolator_webhook.decision import Share, decide
from isolator_webhook.json_patch import Operation, append
from isolator_webhook.options import Options, Treatment
from isolator_webhook.pod import Container, Pod, WrittenVariable, absolute

DEVICES_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
DEVICE_MOUNTS = "/var/run/nvidia-container-devices"
CDI_ANNOTATIONS = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
"""By these a runtime, or NVIDIA's plugin of it, gives a pod the devices that their values name."""
_NO_DEVICES = ("void", "none", "")
_VOID = WrittenVariable(DEVICES_VARIABLE, value="void")


class Finding(Struct, frozen=True):
    """A way to a GPU: `way` for counting, `message` for people. `remedy`: the guard can take it away by itself."""

    way: str
    message: str
    remedy: bool


class Guarded(Struct, frozen=True):
    """What was found, and the operations that take GPUs away from who has not asked: the containers `voided`."""

    findings: list[Finding]
    operations: list[Operation]
    voided: list[str]


_WHOLE_GPUS = (GPU_RESOURCE, f"{GPU_RESOURCE}.shared")
"""NVIDIA's device plugin appends the ending where it shares GPUs by time under another name (renameByDefault)."""


def _has_devices(container: Container) -> bool:
    """Whether the container asked for whole GPUs, MIG slices or a claim."""
    for name, amount in container.limits.items():
        if name in _WHOLE_GPUS or name.startswith("nvidia.com/mig-"):
            value = parse_quantity(str(amount))
            if value is not None and value >= 1:
                return True
    return container.resources is not None and bool(container.resources.claims)


def _given(pod: Pod, options: Options) -> set[str]:
    """Indices of the containers with a share that is not capped but that the pod's scheduler alone gives.

    The pod opted out, or HAMi caps it. With `spec.nodeName` no scheduler sees it: what it asks for costs its author
    nothing. A pod that asks wrongly has no share: it is refused elsewhere.
    """
    if pod.spec.node_name or pod.spec.scheduler_name not in (options.kai_scheduler, options.hami_scheduler):
        return set()
    asking = requests.Pod(pod.annotations, pod.spec.init_containers or (), pod.spec.containers)
    try:
        return {request.index for request in requests.parse(asking, options.resources)}
    except requests.RequestRefused:
        return set()


def under_nvidia_runtime(pod: Pod, options: Options) -> bool:
    """Whether the runtime that heeds `NVIDIA_VISIBLE_DEVICES` starts the pod."""
    runtime = pod.spec.runtime_class_name
    return runtime in options.nvidia_runtime_classes or (options.nvidia_is_default_runtime and not runtime)


def _unasked(
    pod: Pod, before: Iterable[str], options: Options, treatment: Treatment
) -> Iterator[tuple[str, Container]]:
    """Containers without a right to a GPU, with their JSON pointers. `before`: ephemeral ones that are there."""
    decision = decide(pod, options, treatment)
    capped = decision.requests if isinstance(decision, Share) else ()
    shares = {request.index for request in capped} or _given(pod, options)
    for init, array in ((True, "initContainers"), (False, "containers")):
        for position, container in enumerate((pod.spec.init_containers if init else pod.spec.containers) or ()):
            if container_index(position, init=init) not in shares and not _has_devices(container):
                yield f"/spec/{array}/{position}", container
    for position, ephemeral in enumerate(pod.spec.ephemeral_containers or ()):
        # In a pod that is capped, the review of ephemeral containers has the say.
        if ephemeral.name not in before and not capped:
            yield f"/spec/ephemeralContainers/{position}", ephemeral


def void(container: Container, where: str) -> list[Operation]:
    """Operations after which the NVIDIA runtime shows the container no GPU, whatever its image or envFrom say."""
    found = [variable.name for variable in container.env or ()]
    others = [position for position, name in enumerate(found) if name == DEVICES_VARIABLE]
    if others and container.env is not None and container.env[others[-1]].value == "void":
        return []
    removed = [Operation("remove", f"{where}/env/{position}") for position in reversed(others)]
    return removed + append(f"{where}/env", container.env is None, [_VOID])


def _by_environment(container: Container) -> Finding | None:
    given = [variable for variable in container.env or () if variable.name == DEVICES_VARIABLE]
    if not given or (given[-1].value in _NO_DEVICES and not bytes(given[-1].value_from)):
        return None
    value = given[-1].value
    what = "comes from elsewhere" if value is None else f"is {value}"
    return Finding("environment", f"container {container.name}: {DEVICES_VARIABLE} {what}", remedy=True)


def _by_mount(container: Container) -> Finding | None:
    for mount in container.volume_mounts or ():
        if absolute(mount.mount_path).startswith(DEVICE_MOUNTS):
            return Finding("device_mount", f"container {container.name}: a mount at {mount.mount_path}", remedy=False)
    return None


def _by_annotation(key: str, value: str) -> Finding | None:
    """Devices that an annotation gives: by CDI, or as KAI's binder lists them, which writes that after the creation.

    Source of the latter: KAI, pkg/admission/webhook/v1alpha2/nvfractions, which lets nobody but the binder write it.
    """
    if key.startswith(CDI_ANNOTATIONS) and "nvidia.com/" in value:
        return Finding("cdi_annotation", f"annotation {key} asks for {value}", remedy=False)
    if key.startswith(per_container.PREFIX) and key.endswith(per_container.DEVICES):
        return Finding("devices_annotation", f"annotation {key} asks for {value}", remedy=False)
    return None


def examine(
    pod: Pod, before: Iterable[str], options: Options, treatment: Treatment = "default", *, created: bool
) -> Guarded:
    """Find the ways to a GPU in a pod, and take away those that can be.

    `treatment`: the namespace's, which decides with what else caps a share. `created`: the pod is new; otherwise only
    its new ephemeral containers may change. What is not in the pod is not seen: other names for the runtime's variable,
    other runtimes, nodes' own device files in privileged containers.
    """
    findings: list[Finding] = []
    operations: list[Operation] = []
    voided: list[str] = []
    if created:
        annotated = (_by_annotation(key, value) for key, value in pod.annotations.items())
        findings += [one for one in annotated if one is not None]
    nvidia = under_nvidia_runtime(pod, options)
    for where, container in _unasked(pod, before, options, treatment):
        if not created and "/ephemeralContainers/" not in where:
            continue
        if container.security_context is not None and container.security_context.privileged:
            message = f"container {container.name}: it is privileged and sees the node's devices"
            findings.append(Finding("privileged", message, remedy=True))
        if nvidia:
            findings += [one for one in (_by_environment(container), _by_mount(container)) if one is not None]
            taken = void(container, where)
            operations += taken
            voided += [container.name] if taken else []
    return Guarded(findings, operations, voided)
