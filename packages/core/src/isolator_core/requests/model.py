"""A request: the share as its author wrote it, before any arithmetic, whichever way it was asked for."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

import msgspec

from isolator_core.names import container_index

GPU_RESOURCE = "nvidia.com/gpu"


class RequestRefused(Exception):
    """A request that KAI would refuse, with KAI's reason, or that could be read two ways, with ours."""


class Origin(StrEnum):
    """The way in which a share was asked for."""

    KAI = "KAI's annotations"
    CONTAINER = "KAI's annotations of a container"
    HAMI = "HAMi's resources"
    CORES = "the annotation for cores on whole GPUs"


class Memory(msgspec.Struct, frozen=True):
    """Memory of each device, in MiB."""

    mib: int

    def __str__(self) -> str:
        return f"{self.mib} MiB"


class Fraction(msgspec.Struct, frozen=True):
    """Part of each device's memory: `decimal` in plain notation, exactly the float64 that KAI reads, and that value."""

    decimal: str
    value: float

    def __str__(self) -> str:
        return f"fraction {self.decimal}"


def fraction_of(value: float) -> Fraction:
    """A fraction from KAI's float64: repr gives the shortest decimal that reads back as the same value."""
    return Fraction(format(Decimal(repr(value)).normalize(), "f"), value)


WHOLE = Fraction("1", 1.0)
"""All of each device's memory."""


class Request(msgspec.Struct, frozen=True):
    """The share that one container was asked for. `position` counts among init containers or regular ones.

    `memory` is what it may use; `reserved`, where that is less, what KAI keeps for it and places the pod by.
    """

    container: str
    position: int
    init: bool
    memory: Memory | Fraction
    devices: int
    origin: Origin
    cores: int | None = None
    priority: int | None = None
    reserved: Memory | Fraction | None = None

    @property
    def guaranteed(self) -> Memory | Fraction:
        """What KAI places the pod by."""
        return self.memory if self.reserved is None else self.reserved

    @property
    def index(self) -> str:
        """Stands for the container in annotation keys and volume names: `0`, `1`, … or `i0`, `i1`, …."""
        return container_index(self.position, init=self.init)


class Container(Protocol):
    """What of a container decides about requests."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Mapping[str, object]: ...


class Pod(msgspec.Struct, frozen=True):
    """What of a pod decides about requests."""

    annotations: Mapping[str, str]
    init_containers: Sequence[Container]
    containers: Sequence[Container]

    @property
    def asks_for_whole_gpus(self) -> bool:
        """Whether a container has a limit of whole GPUs, be it 0 (KAI: getFirstGPULimit)."""
        return any(GPU_RESOURCE in container.limits for container in (*self.init_containers, *self.containers))

    def each(self) -> list[tuple[int, bool, Container]]:
        """Every container with its position and whether it is an init container; those first, as KAI searches."""
        return [
            *((position, True, container) for position, container in enumerate(self.init_containers)),
            *((position, False, container) for position, container in enumerate(self.containers)),
        ]
