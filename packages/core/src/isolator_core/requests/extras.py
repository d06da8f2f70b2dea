"""This project's own annotations beside a share: cores and priority, which KAI has not."""

from collections.abc import Mapping

import msgspec

from isolator_core.go_numbers import parse_quantity, parse_uint
from isolator_core.names import ANNOTATION_PREFIX
from isolator_core.requests.model import GPU_RESOURCE, WHOLE, Origin, Pod, Request, RequestRefused

CORES = ANNOTATION_PREFIX + "gpu-cores"
PRIORITY = ANNOTATION_PREFIX + "priority"


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations ask for a compute cap. A priority alone asks for nothing."""
    return CORES in annotations


def _integer(annotations: Mapping[str, str], key: str, least: int, most: int) -> int | None:
    text = annotations.get(key)
    if text is None:
        return None
    value = parse_uint(text)
    if value is None or not least <= value <= most:
        raise RequestRefused(f"{key} is {text!r}: accepted is an integer from {least} to {most}")
    return value


def whole_gpus(pod: Pod) -> list[Request]:
    """Containers that were given whole GPUs, as requests for all of their memory: a compute cap may rest on them."""
    found = []
    for position, init, container in pod.each():
        amount = parse_quantity(str(container.limits.get(GPU_RESOURCE, "0")))
        if amount is not None and amount >= 1:
            found.append(Request(container.name, position, init, WHOLE, int(amount), Origin.CORES))
    return found


def add(pod: Pod, requests: list[Request]) -> list[Request]:
    """The requests with cores and priority of the pod's annotations.

    Raises RequestRefused for a value out of range, and where the annotation could mean more than one container or
    contradicts the container's own.
    """
    cores = _integer(pod.annotations, CORES, 1, 100)
    priority = _integer(pod.annotations, PRIORITY, 0, 1)
    for key, value in ((CORES, cores), (PRIORITY, priority)):
        if value is not None and len(requests) != 1:
            raise RequestRefused(
                f"{key} is given in a pod in which {len(requests)} containers ask for a share: accepted is it in a pod "
                "in which one does"
            )
    if cores is not None:
        if requests[0].cores not in (None, cores):
            raise RequestRefused(
                f"{CORES} is {cores} where the container's limit says {requests[0].cores}: accepted is one of them"
            )
        requests = [msgspec.structs.replace(requests[0], cores=cores)]
    if priority is not None:
        if requests[0].priority not in (None, priority):
            raise RequestRefused(
                f"{PRIORITY} is {priority} where the container's limit says {requests[0].priority}: "
                "accepted is one of them"
            )
        requests = [msgspec.structs.replace(requests[0], priority=priority)]
    return requests
