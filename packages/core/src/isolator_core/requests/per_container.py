"""Annotations for one container each, as KAI reads them from 0.18: `nvidia.com/container.<name>.gpu-memory.limit`.

KAI itself gives a share to one container of a pod; here any number may have a limit. `….gpus.devices` is not for a
pod's author: KAI's binder lists there, with commas, the GPUs that it gave (KAI: pkg/common/resources/
gpu_sharing_nvfractions.go, IsBinderOwnedNvFractionsAnnotation).
"""

from collections.abc import Mapping

from isolator_core.go_numbers import MOST_INT64, parse_quantity
from isolator_core.requests import kai
from isolator_core.requests.model import Memory, Origin, Pod, Request, RequestRefused

PREFIX = "nvidia.com/container."
MEMORY_REQUEST = ".gpu-memory.request"
MEMORY_LIMIT = ".gpu-memory.limit"
DEVICES = ".gpus.devices"

_MIB = 1 << 20


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether an annotation of this kind asks for memory (KAI: pkg/common/resources/gpu_sharing.go)."""
    return any(key.startswith(PREFIX) and key.endswith((MEMORY_REQUEST, MEMORY_LIMIT)) for key in annotations)


def bound(annotations: Mapping[str, str], container: str) -> bool:
    """Whether KAI's binder has given the container its GPUs, and so may have written its memory here too."""
    return f"{PREFIX}{container}{DEVICES}" in annotations


def _mib(key: str, text: str) -> int:
    """MiB of a Kubernetes quantity of bytes, rounded down: what is granted is never above what was written."""
    value = parse_quantity(text)
    if value is None or not _MIB <= value <= MOST_INT64:
        raise RequestRefused(f"{key} is {text!r}: accepted is a quantity of bytes from 1Mi up, such as 5Gi")
    return int(value) // _MIB


def _by_name(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What is given by container. Without a name KAI refuses the key (KAI: pkg/common/resources/
    gpu_sharing_nvfractions.go, parseNvFractionsAnnotationKey)."""
    found: dict[str, dict[str, str]] = {}
    for key, text in annotations.items():
        if not key.startswith(PREFIX):
            continue
        for suffix in (MEMORY_REQUEST, MEMORY_LIMIT):
            if key.endswith(suffix):
                if len(key) <= len(PREFIX) + len(suffix):
                    raise RequestRefused(f"{key} is {text!r} and names no container: accepted is {PREFIX}NAME{suffix}")
                found.setdefault(key[len(PREFIX) : -len(suffix)], {})[suffix] = text
    return found


def _devices(annotations: Mapping[str, str], container: str) -> int:
    """The pod's number of devices, or as many as KAI's binder lists."""
    listed = annotations.get(f"{PREFIX}{container}{DEVICES}", "").split(",")
    return kai.devices(annotations) or len(listed)


def _request(pod: Pod, name: str, position: int, init: bool, given: Mapping[str, str]) -> Request:
    own = PREFIX + name
    wanted = {suffix: _mib(own + suffix, text) for suffix, text in given.items()}
    if wanted.get(MEMORY_REQUEST, 0) > wanted.get(MEMORY_LIMIT, MOST_INT64):
        raise RequestRefused(
            f"{own}{MEMORY_REQUEST} is {given[MEMORY_REQUEST]!r}: accepted is at most {own}{MEMORY_LIMIT}, "
            f"which is {given[MEMORY_LIMIT]!r}"
        )
    memory = wanted.get(MEMORY_LIMIT, wanted.get(MEMORY_REQUEST, 0))
    reserved = wanted.get(MEMORY_REQUEST, memory)
    return Request(
        name,
        position,
        init,
        Memory(memory),
        _devices(pod.annotations, name),
        Origin.CONTAINER,
        reserved=Memory(reserved) if reserved < memory else None,
    )


def parse(pod: Pod) -> list[Request]:
    """The requests of these annotations, in the order of the containers. The limit counts, or the request alone.

    Raises RequestRefused with the annotation, its value and what is accepted.
    """
    by_name = _by_name(pod.annotations)
    if not by_name:
        return []
    if pod.asks_for_whole_gpus:
        raise RequestRefused(kai.BOTH_KINDS)
    requests = [
        _request(pod, container.name, position, init, by_name.pop(container.name))
        for position, init, container in pod.each()
        if container.name in by_name
    ]
    for name, given in by_name.items():
        names = ", ".join(container.name for _, _, container in pod.each())
        raise RequestRefused(
            f"{PREFIX}{name}{next(iter(given))} names the container {name!r}: accepted are this pod's, {names}"
        )
    return requests
