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


def _share(request: Request) -> str:
    reserved = "" if request.reserved is None else f", {request.reserved} of it reserved,"
    return f"{request.memory}{reserved} on {request.devices} devices"


def _merged(pod: Pod, first: Request, second: Request) -> Request:
    """One container that is asked for twice: fine where both say the same, as after KAI has added its newer form.

    Of a fraction KAI's binder writes the bytes when it has chosen the card (KAI: pkg/binder/plugins/nvfractions).
    """
    if isinstance(first.memory, Fraction) and per_container.bound(pod.annotations, first.container):
        return first
    both = (first, second)
    if len({(request.memory, request.guaranteed, request.devices) for request in both}) > 1:
        raise RequestRefused(
            f"container {first.container} is asked for twice: {first.origin} say {_share(first)}, {second.origin} "
            f"say {_share(second)}: accepted is one of them"
        )
    return first


def parse(pod: Pod, names: ResourceNames = HAMI_NAMES) -> tuple[Request, ...]:
    """Every share that a pod asks for, one a container; empty where it asks for none.

    Raises RequestRefused for what KAI would refuse, and for what could be read two ways.
    """
    found: dict[str, Request] = {}
    by_container = per_container.asks(pod.annotations)
    if kai.asks(pod.annotations) or (kai.DEVICES in pod.annotations and not by_container):
        request = kai.parse(pod)
        found[request.index] = request
    for request in per_container.parse(pod):
        earlier = found.get(request.index)
        found[request.index] = request if earlier is None else _merged(pod, earlier, request)
    by_resources = hami.parse(pod, names) if hami.asks(pod, names) else []
    if found and by_resources:
        raise RequestRefused(
            f"the pod asks by {next(iter(found.values())).origin} and container {by_resources[0].container} by "
            f"{Origin.HAMI}: accepted is one of them"
        )
    requests = list(found.values()) + by_resources
    if requests:
        kai.check_limits(pod.annotations)
    if not requests and extras.asks(pod.annotations):
        requests = extras.whole_gpus(pod)
    return tuple(extras.add(pod, requests)) if requests or extras.asks(pod.annotations) else ()
