"""What a pod asks for: every way to ask, read into one kind of result."""

from isolator_core.requests import extras, hami, kai, per_container
from isolator_core.requests.hami import HAMI_NAMES, ResourceNames
from isolator_core.requests.model import (
    WHOLE,
    Container,
    Fraction,
    Memory,
    Origin,
    Pod,
    Request,
    RequestRefused,
)

__all__ = [
    "HAMI_NAMES",
    "WHOLE",
    "Container",
    "Fraction",
    "Memory",
    "Origin",
    "Pod",
    "Request",
    "RequestRefused",
    "ResourceNames",
    "parse",
]


def _merged(first: Request, second: Request) -> Request:
    """One container that is asked for twice: fine where both say the same, as after KAI has added its newer form."""
    if (first.memory, first.devices) != (second.memory, second.devices):
        raise RequestRefused(
            f"container {first.container} is asked for twice: {first.origin} say {first.memory} on {first.devices} "
            f"devices, {second.origin} say {second.memory} on {second.devices}: accepted is one of them"
        )
    return first


def parse(pod: Pod, names: ResourceNames = HAMI_NAMES) -> tuple[Request, ...]:
    """Every share that a pod asks for, one a container; empty where it asks for none.

    Raises RequestRefused for what KAI would refuse, and for what could be read two ways.
    """
    found: dict[str, Request] = {}
    if kai.asks(pod.annotations):
        request = kai.parse(pod)
        found[request.index] = request
    for request in per_container.parse(pod):
        earlier = found.get(request.index)
        found[request.index] = request if earlier is None else _merged(earlier, request)
    by_resources = hami.parse(pod, names) if hami.asks(pod, names) else []
    if found and by_resources:
        raise RequestRefused(
            f"the pod asks by {next(iter(found.values())).origin} and container {by_resources[0].container} by "
            f"{Origin.HAMI}: accepted is one of them"
        )
    requests = list(found.values()) + by_resources
    if not requests and extras.asks(pod.annotations):
        requests = extras.whole_gpus(pod)
    return tuple(extras.add(pod, requests)) if requests or extras.asks(pod.annotations) else ()
