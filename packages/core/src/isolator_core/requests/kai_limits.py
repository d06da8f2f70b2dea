"""Limits above what is reserved: from 0.18 on KAI places a container by its request and lets it use up to its limit."""

from collections.abc import Mapping

from isolator_core.go_numbers import parse_float, parse_quantity
from isolator_core.requests.model import Fraction, Memory, RequestRefused, fraction_of

FRACTION_LIMIT = "gpu-fraction.limit"
MEMORY_LIMIT = "gpu-memory.limit"
_PREFIX, _SUFFIX = "kai.scheduler/container.", ".gpu-memory.portion.limit"
_PLACES = 5


def portion_limits(annotations: Mapping[str, str]) -> dict[str, str]:
    """Names of containers by the annotations that limit their portion."""
    return {
        key: key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        for key in annotations
        if key.startswith(_PREFIX) and key.endswith(_SUFFIX)
    }


def _portion(key: str, text: str, fraction_text: str, fraction: Fraction) -> Fraction:
    if len(text.partition(".")[2]) > _PLACES:
        raise RequestRefused(f"{key} annotation value must have at most {_PLACES} digits after the decimal point")
    value = parse_float(text)
    if value is None or not 0 < value < 1:
        raise RequestRefused(f"{key} annotation value must be a positive number smaller than 1.0")
    if value <= fraction.value:
        raise RequestRefused(
            f"{key} annotation value ({text}) must be greater than gpu-fraction annotation value ({fraction_text})"
        )
    return fraction_of(value)


def of_fraction(
    annotations: Mapping[str, str], container: str, fraction_text: str, fraction: Fraction
) -> Fraction | None:
    """What a container that asks by `gpu-fraction` may use at most, None where that is the fraction itself.

    By `kai.scheduler/container.<name>.gpu-memory.portion.limit`, or by `gpu-fraction.limit`, which KAI's admission
    turns into that. Raises RequestRefused with KAI's reason. Source: KAI, pkg/common/resources/
    gpu_sharing_validation.go, validateGpuMemoryPortionLimitAnnotation and validateFractionLimitShorthand;
    pkg/binder/plugins/nvfractions multiplies it, unrounded, by the card's memory.
    """
    short = annotations.get(FRACTION_LIMIT)
    found = None if short is None else _portion(FRACTION_LIMIT, short, fraction_text, fraction)
    for key, name in portion_limits(annotations).items():
        if name != container:
            raise RequestRefused(
                f"{key} annotation container name {name} does not match the gpu-fraction target container"
            )
        if short is not None and short != annotations[key]:
            raise RequestRefused(f"{FRACTION_LIMIT} annotation conflicts with {key} annotation")
        found = _portion(key, annotations[key], fraction_text, fraction)
    return found


def of_memory(annotations: Mapping[str, str], memory: Memory) -> Memory | None:
    """What a container that asks by `gpu-memory` may use at most, by `gpu-memory.limit`; None without that.

    Raises RequestRefused with KAI's reason. Source: KAI, pkg/common/resources/gpu_sharing_validation.go,
    validateMemoryLimitShorthand.
    """
    text = annotations.get(MEMORY_LIMIT)
    if text is None:
        return None
    quantity = parse_quantity(text)
    if quantity is None or quantity <= 0 or parse_float(text) is not None:
        raise RequestRefused(
            f"{MEMORY_LIMIT} annotation value must be a positive Kubernetes memory quantity with a unit"
        )
    limit = Memory(int(quantity) >> 20)
    if limit.mib < memory.mib:
        raise RequestRefused(
            f"{MEMORY_LIMIT} annotation value ({text}) must not be smaller than gpu-memory annotation value "
            f"({memory.mib} MiB)"
        )
    return limit
