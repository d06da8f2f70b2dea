"""What a pod asks for: the share as its author wrote it, before any arithmetic.

`parse` reads every way to ask into `Request`s; a pod that asks for something KAI would refuse raises `RequestRefused`
with KAI's reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from isolator_core.go_numbers import parse_float, parse_quantity, parse_uint
from isolator_core.names import container_index

GPU_MEMORY = "gpu-memory"
GPU_FRACTION = "gpu-fraction"
GPU_FRACTION_DEVICES = "gpu-fraction-num-devices"
GPU_FRACTION_CONTAINER = "gpu-fraction-container-name"
MPS = "mps"
GPU_RESOURCE = "nvidia.com/gpu"


class RequestRefused(Exception):
    """A request that KAI would refuse, with KAI's reason, or that could be read two ways, with ours."""


class Origin(StrEnum):
    """The way in which a share was asked for."""

    KAI = "KAI annotations"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of each device, in MiB."""

    mib: int


@dataclass(frozen=True, slots=True)
class Fraction:
    """Part of each device's memory: `decimal` in plain notation, exactly the float64 that KAI reads, and that value."""

    decimal: str
    value: float


@dataclass(frozen=True, slots=True)
class Request:
    """The share that one container was asked for."""

    container: str
    position: int
    init: bool
    memory: Memory | Fraction
    devices: int
    cores: int | None
    priority: int | None
    origin: Origin

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


def _fraction(text: str) -> Fraction:
    value = parse_float(text)
    if value is None or value <= 0 or value >= 1:
        raise RequestRefused("gpu-fraction annotation value must be a positive number smaller than 1.0")
    if parse_quantity(text) is None:
        raise RequestRefused(
            "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation "
            f".given value: {text}"
        )
    # repr gives the shortest decimal that reads back as the same float64.
    return Fraction(format(Decimal(repr(value)), "f"), value)


def _positive(text: str, reason: str) -> int:
    value = parse_uint(text)
    if not value:
        raise RequestRefused(reason)
    return value


def fraction_container(
    annotations: Mapping[str, str], init_containers: Sequence[Container], containers: Sequence[Container]
) -> tuple[int, bool]:
    """Position of the fraction container, and whether it is an init container.

    The one that `gpu-fraction-container-name` names, init containers searched first, otherwise the first container.
    Source: KAI, pkg/admission/webhook/v1alpha2/gpusharing, GetFractionContainerRef.
    """
    name = annotations.get(GPU_FRACTION_CONTAINER)
    if name is None:
        if not containers:
            raise RequestRefused("spec.containers is empty: there is no container for the fraction request")
        return 0, False
    for init, candidates in ((True, init_containers), (False, containers)):
        for position, container in enumerate(candidates):
            if container.name == name:
                return position, init
    raise RequestRefused(
        f"failed to get fraction container ref: container with name {name} not found for fraction request"
    )


def _kai(
    annotations: Mapping[str, str], init_containers: Sequence[Container], containers: Sequence[Container]
) -> Request:
    """KAI's annotations by KAI's grammar, in KAI's order of checks, refused with KAI's texts.

    Source: KAI, pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go, ValidateGpuRequests.
    """
    memory_text = annotations.get(GPU_MEMORY)
    fraction_text = annotations.get(GPU_FRACTION)
    devices_text = annotations.get(GPU_FRACTION_DEVICES)
    whole_gpu = any(GPU_RESOURCE in container.limits for container in (*init_containers, *containers))
    if annotations.get(MPS) == "true" and memory_text is None and fraction_text is None:
        raise RequestRefused("MPS is only supported with GPU fraction request")
    if fraction_text is not None and whole_gpu:
        raise RequestRefused("cannot have both GPU fraction request and whole GPU resource request/limit")
    if memory_text is not None and (fraction_text is not None or whole_gpu):
        raise RequestRefused("cannot request both GPU and GPU memory")
    memory: Memory | Fraction
    if memory_text is not None:
        memory = Memory(_positive(memory_text, "gpu-memory annotation value must be a positive integer greater than 0"))
    elif fraction_text is not None:
        memory = _fraction(fraction_text)
    else:
        raise RequestRefused(
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
        )
    devices = 1
    if devices_text is not None:
        devices = _positive(devices_text, "fraction count annotation value must be a positive integer greater than 0")
    position, init = fraction_container(annotations, init_containers, containers)
    return Request(
        container=(init_containers if init else containers)[position].name,
        position=position,
        init=init,
        memory=memory,
        devices=devices,
        cores=None,
        priority=None,
        origin=Origin.KAI,
    )


def asks_by_kai(annotations: Mapping[str, str]) -> bool:
    """Whether KAI's annotations ask for a share: their presence counts, even with an empty value.

    Source: KAI, pkg/common/resources/gpu_sharing.go, RequestsGPUFraction; a number of devices alone is refused there.
    """
    return GPU_MEMORY in annotations or GPU_FRACTION in annotations or GPU_FRACTION_DEVICES in annotations


def parse(
    annotations: Mapping[str, str], init_containers: Sequence[Container], containers: Sequence[Container]
) -> tuple[Request, ...]:
    """Every share that a pod asks for, one a container; empty where it asks for none.

    Raises RequestRefused for what KAI would refuse and for what could be read two ways.
    """
    if not asks_by_kai(annotations):
        return ()
    return (_kai(annotations, init_containers, containers),)
