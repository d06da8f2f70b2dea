"""HAMi's resources in a container's limits, and the same request in KAI's annotations."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from isolator_core.go_numbers import parse_quantity
from isolator_core.requests import kai
from isolator_core.requests.model import WHOLE, Fraction, Memory, Origin, Pod, Request, RequestRefused, fraction_of

_MOST = (1 << 43) - 1
_DOMAIN = re.compile(r"[a-z0-9.-]+", re.ASCII)


class ResourceNames(msgspec.Struct, frozen=True):
    """Names of the resources, None where one is not read. The part behind the slash says which it is."""

    gpu: str | None = None
    gpumem: str | None = None
    gpumem_percentage: str | None = None
    gpucores: str | None = None
    priority: str | None = None

    def listed(self) -> list[str]:
        """The names that are read."""
        return [name for name in msgspec.structs.astuple(self) if name is not None]


def resource_names(names: Iterable[str]) -> ResourceNames:
    """Sort out a list such as upstream's value `webhook.gpuShareResources`.

    Raises ValueError for a name whose last part is none of gpu, gpumem, gpumem-percentage, gpucores, priority, and for
    two names of one kind.
    """
    kinds = [name.replace("_", "-") for name in ResourceNames.__struct_fields__]
    found: dict[str, str] = {}
    for name in names:
        domain, _, kind = name.partition("/")
        if _DOMAIN.fullmatch(domain) is None or kind not in kinds:
            raise ValueError(
                f"{name!r} is no resource of this kind: accepted are DOMAIN/ and one of {', '.join(kinds)}"
            )
        if kind.replace("-", "_") in found:
            raise ValueError(f"{name!r} is the second name for {kind}: accepted is one")
        found[kind.replace("-", "_")] = name
    return ResourceNames(**found)


HAMI_NAMES = resource_names(
    (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
    )
)
"""HAMi's defaults."""


def _asking(limits: Mapping[str, object], names: ResourceNames) -> bool:
    """A number of GPUs alone is a whole-GPU container, and a priority alone asks for nothing."""
    return bool(limits) and any(
        name in limits for name in (names.gpumem, names.gpumem_percentage, names.gpucores) if name
    )


def asks(pod: Pod, names: ResourceNames) -> bool:
    """Whether a container asks for a share by these resources."""
    return any(_asking(container.limits, names) for container in (*pod.init_containers, *pod.containers))


def _integer(container: str, name: str, value: object, least: int, most: int, unit: str) -> int:
    """An extended resource's amount: Kubernetes lets integers through only."""
    amount = parse_quantity(str(value))
    if amount is None or amount.denominator != 1 or not least <= amount <= most:
        raise RequestRefused(
            f"container {container}: limit {name} is {str(value)!r}: "
            f"accepted is an integer from {least} to {most}{unit}"
        )
    return int(amount)


def _request(container: str, position: int, init: bool, limits: Mapping[str, object], names: ResourceNames) -> Request:
    def amount(name: str | None, least: int, most: int, unit: str = "") -> int | None:
        if name is None or name not in limits:
            return None
        return _integer(container, name, limits[name], least, most, unit)

    mib = amount(names.gpumem, 1, _MOST, " MiB")
    percentage = amount(names.gpumem_percentage, 1, 100, " percent")
    cores = amount(names.gpucores, 0, 100, " percent")
    if mib is not None and percentage is not None:
        raise RequestRefused(
            f"container {container}: limits {names.gpumem} and {names.gpumem_percentage} are both given: "
            "accepted is one of them"
        )
    memory: Memory | Fraction = WHOLE
    if mib is not None:
        memory = Memory(mib)
    elif percentage is not None and percentage < 100:
        memory = fraction_of(percentage / 100)
    return Request(
        container,
        position,
        init,
        memory,
        amount(names.gpu, 1, _MOST) or 1,
        Origin.HAMI,
        # 0 is HAMi's word for no limit.
        cores=cores or None,
        priority=amount(names.priority, 0, 1),
    )


def parse(pod: Pod, names: ResourceNames) -> list[Request]:
    """The requests of these resources, in the order of the containers.

    `gpumem` is MiB of each device, `gpumem-percentage` a part of it, `gpucores` a percentage of each device's compute,
    and a missing `gpu` means one device (HAMi: docs/config.md, defaultGPUNum). Raises RequestRefused with the
    container, the resource, its value and what is accepted.
    """
    return [
        _request(container.name, position, init, container.limits, names)
        for position, init, container in pod.each()
        if _asking(container.limits, names)
    ]


def kai_annotations(request: Request) -> dict[str, str]:
    """KAI's annotations for the same memory and devices; none for whole GPUs, which KAI gives by their resource."""
    if request.memory == WHOLE:
        return {}
    annotations = {kai.CONTAINER: request.container}
    if isinstance(request.memory, Memory):
        annotations[kai.MEMORY] = str(request.memory.mib)
    else:
        annotations[kai.FRACTION] = request.memory.decimal
    if request.devices > 1:
        annotations[kai.DEVICES] = str(request.devices)
    return annotations
