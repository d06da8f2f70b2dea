"""KAI's annotations of a pod, by KAI's grammar, in KAI's order of checks, refused with KAI's texts."""

import functools
from collections.abc import Mapping

from isolator_core.go_numbers import parse_float, parse_quantity, parse_uint
from isolator_core.requests.model import (
    GPU_RESOURCE,
    Fraction,
    Memory,
    Origin,
    Pod,
    Request,
    RequestRefused,
    fraction_of,
)

MEMORY = "gpu-memory"
FRACTION = "gpu-fraction"
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
MPS = "mps"


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations ask for a share: their presence counts, even with an empty value.

    Source: KAI, pkg/common/resources/gpu_sharing.go, RequestsGPUFraction; a number of devices alone is refused there.
    """
    return MEMORY in annotations or FRACTION in annotations or DEVICES in annotations


@functools.lru_cache(maxsize=1024)
def _fraction(text: str) -> Fraction:
    value = parse_float(text)
    if value is None or value <= 0 or value >= 1:
        raise RequestRefused("gpu-fraction annotation value must be a positive number smaller than 1.0")
    if parse_quantity(text) is None:
        raise RequestRefused(
            "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation "
            f".given value: {text}"
        )
    return fraction_of(value)


def _positive(text: str, reason: str) -> int:
    value = parse_uint(text)
    if not value:
        raise RequestRefused(reason)
    return value


def fraction_container(pod: Pod) -> tuple[int, bool, str]:
    """Position of the fraction container, whether it is an init container, and its name.

    The one that `gpu-fraction-container-name` names, init containers searched first, otherwise the first container.
    Source: KAI, pkg/admission/webhook/v1alpha2/gpusharing, GetFractionContainerRef.
    """
    wanted = pod.annotations.get(CONTAINER)
    if wanted is None:
        if not pod.containers:
            raise RequestRefused("spec.containers is empty: there is no container for the fraction request")
        return 0, False, pod.containers[0].name
    for position, init, container in pod.each():
        if container.name == wanted:
            return position, init, wanted
    raise RequestRefused(
        f"failed to get fraction container ref: container with name {wanted} not found for fraction request"
    )


def parse(pod: Pod) -> Request:
    """The request of a pod that asks by these annotations. Raises RequestRefused with KAI's reason.

    Source: KAI, pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go, ValidateGpuRequests.
    """
    memory_text = pod.annotations.get(MEMORY)
    fraction_text = pod.annotations.get(FRACTION)
    devices_text = pod.annotations.get(DEVICES)
    whole_gpu = any(GPU_RESOURCE in container.limits for container in (*pod.init_containers, *pod.containers))
    if pod.annotations.get(MPS) == "true" and memory_text is None and fraction_text is None:
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
    position, init, name = fraction_container(pod)
    return Request(name, position, init, memory, devices, Origin.KAI)
