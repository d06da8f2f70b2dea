"""KAI's annotations of a pod, by KAI's grammar, in KAI's order of checks, refused with KAI's texts."""

import functools
from collections.abc import Mapping

from isolator_core.go_numbers import parse_float, parse_quantity, parse_uint
from isolator_core.requests import kai_limits
from isolator_core.requests.model import (
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

BOTH_KINDS = "cannot have both GPU fraction request and whole GPU resource request/limit"


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations ask for a share: their presence counts, even with an empty value.

    Source: KAI, pkg/common/resources/gpu_sharing.go, RequestsGPUFraction.
    """
    return MEMORY in annotations or FRACTION in annotations


_LONGEST_KEPT = 64
"""An annotation is as long as its author likes: longer ones are not kept for pods that come."""


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


def devices(annotations: Mapping[str, str]) -> int | None:
    """Number of devices of which the pod wants the same share each, None where it does not say."""
    text = annotations.get(DEVICES)
    if text is None:
        return None
    return _positive(text, "fraction count annotation value must be a positive integer greater than 0")


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


def check_limits(annotations: Mapping[str, str]) -> None:
    """Raises RequestRefused, with KAI's reason, for a limit without the request that it is above."""
    for key in (kai_limits.FRACTION_LIMIT, *kai_limits.portion_limits(annotations)):
        if key in annotations and FRACTION not in annotations:
            raise RequestRefused(f"{key} annotation can only be used together with the {FRACTION} annotation")
    key = kai_limits.MEMORY_LIMIT
    if key in annotations and MEMORY not in annotations:
        raise RequestRefused(f"{key} annotation can only be used together with the {MEMORY} annotation")


def parse(pod: Pod) -> Request:
    """The request of a pod that asks by these annotations. Raises RequestRefused with KAI's reason.

    Source: KAI, pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator.go, ValidateGpuRequests.
    """
    memory_text = pod.annotations.get(MEMORY)
    fraction_text = pod.annotations.get(FRACTION)
    if pod.annotations.get(MPS) == "true" and memory_text is None and fraction_text is None:
        raise RequestRefused("MPS is only supported with GPU fraction request")
    if fraction_text is not None and pod.asks_for_whole_gpus:
        raise RequestRefused(BOTH_KINDS)
    if memory_text is not None and (fraction_text is not None or pod.asks_for_whole_gpus):
        raise RequestRefused("cannot request both GPU and GPU memory")
    memory: Memory | Fraction
    if memory_text is not None:
        memory = Memory(_positive(memory_text, "gpu-memory annotation value must be a positive integer greater than 0"))
    elif fraction_text is not None:
        memory = (_fraction if len(fraction_text) <= _LONGEST_KEPT else _fraction.__wrapped__)(fraction_text)
    else:
        raise RequestRefused(
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
        )
    number = devices(pod.annotations) or 1
    position, init, name = fraction_container(pod)
    limit: Memory | Fraction | None
    if isinstance(memory, Memory):
        limit = kai_limits.of_memory(pod.annotations, memory)
    else:
        limit = kai_limits.of_fraction(pod.annotations, name, fraction_text or "", memory)
    if limit is None or limit == memory:
        return Request(name, position, init, memory, number, Origin.KAI)
    return Request(name, position, init, limit, number, Origin.KAI, reserved=memory)
