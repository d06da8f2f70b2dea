"""The `request` file, in which a request travels to the library: `key=value` a line.

The webhook writes it into an annotation, the kubelet projects that into the container, libvgpu and the monitor read it.
"""

import re
from typing import Literal, get_args

import msgspec

from isolator_core.go_numbers import MOST_UINT64, parse_uint

_DECIMAL = re.compile(r"(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?", re.ASCII)
_CONTAINER = re.compile(r"[a-z0-9-]{1,63}", re.ASCII)
_SPACE = " \t\r\n"
_PLACES = 18

MOST_MIB = (1 << 44) - 1
"""More would not be a number of bytes in 64 bits."""

LEAST_FRACTION = "0.000000000000000001"
"""Digits after the 18th place are not looked at, and a fraction of nothing is none."""

RegionVolume = Literal["emptyDir", "hostPath"]
"""What is mounted at `containers/`: a volume of the pod, or this container's own directory of the node."""

REGION_VOLUMES: tuple[RegionVolume, ...] = get_args(RegionVolume)

_KEYS = ("container", "memory", "fraction", "at-most", "devices", "cores", "priority", "region")


class RequestFileInvalid(Exception):
    """The file cannot be used. Its text names the line or the key, the value and what is accepted."""


class RequestFile(msgspec.Struct, frozen=True):
    """Content of a `request` file. Exactly one of `memory_mib`, `fraction` and `exempt` is given."""

    container: str
    memory_mib: int | None = None
    fraction: str | None = None
    exempt: bool = False
    at_most_mib: int | None = None
    devices: int = 1
    cores: int | None = None
    priority: int | None = None
    region: RegionVolume = "emptyDir"
    unknown: tuple[str, ...] = ()


def build(request: RequestFile) -> str:
    """Text of the file. Raises RequestFileInvalid for what `parse` would not read back to the same content."""
    lines = [f"container={_container(request.container)}"]
    if request.exempt:
        lines.append("memory=none")
    if request.memory_mib is not None:
        lines.append(f"memory={request.memory_mib}m")
    if request.fraction is not None:
        lines.append(f"fraction={request.fraction}")
    if request.at_most_mib is not None:
        lines.append(f"at-most={request.at_most_mib}m")
    lines.append(f"devices={request.devices}")
    if request.cores is not None:
        lines.append(f"cores={request.cores}")
    if request.priority is not None:
        lines.append(f"priority={request.priority}")
    if request.region != "emptyDir":
        lines.append(f"region={request.region}")
    text = "\n".join(lines) + "\n"
    if parse(text) != request:
        raise RequestFileInvalid(f"{request} does not survive the request file: unknown keys are never written")
    return text


def _split(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Values by known key, and the keys that are not known."""
    values: dict[str, str] = {}
    unknown = []
    for number, whole in enumerate(text.split("\n"), start=1):
        line = whole.strip(_SPACE)
        if not line:
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise RequestFileInvalid(f"line {number} is {line!r}: accepted is key=value")
        if key not in _KEYS:
            unknown.append(key)
            continue
        if key in values:
            raise RequestFileInvalid(f"{key} is given twice, in line {number} again: accepted is once")
        values[key] = value
    return values, tuple(unknown)


def _integer(key: str, text: str, least: int, most: int) -> int:
    value = parse_uint(text)
    if value is None or not least <= value <= most:
        raise RequestFileInvalid(f"{key} is {text!r}: accepted is an integer from {least} to {most}")
    return value


def _mib(key: str, text: str) -> int:
    if not text.endswith("m"):
        raise RequestFileInvalid(f"{key} is {text!r}: accepted is a number of MiB with the suffix m, such as 4096m")
    return _integer(key, text.removesuffix("m"), 1, MOST_MIB)


def _container(text: str) -> str:
    if _CONTAINER.fullmatch(text) is None:
        raise RequestFileInvalid(f"container is {text!r}: accepted is a container's name")
    return text


def _region(text: str) -> RegionVolume:
    for volume in REGION_VOLUMES:
        if text == volume:
            return volume
    raise RequestFileInvalid(f"region is {text!r}: accepted is one of {', '.join(REGION_VOLUMES)}")


def ratio(fraction: str) -> tuple[int, int]:
    """Numerator and denominator of a fraction that `parse` let pass, which may have thousands of digits."""
    whole, _, places = fraction.partition(".")
    places = places[:_PLACES]
    return int((whole + places).lstrip("0")), 10 ** len(places)


def _fraction(text: str) -> str:
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        places = (match[2] or "")[:_PLACES]
        digits = (match[1] + places).lstrip("0")
        if digits and len(digits) <= _PLACES + 1 and int(digits) <= 10 ** len(places):
            return text
    raise RequestFileInvalid(f"fraction is {text!r}: accepted is a decimal above 0 and up to 1, such as 0.25")


def parse(text: str) -> RequestFile:
    """Read the file's text. Keys that are not known are kept in `unknown`, in the file's order, and change nothing.

    Raises RequestFileInvalid for a malformed line, a key given twice, a malformed known key, a missing container, and
    unless exactly one of memory and fraction is there.
    """
    values, unknown = _split(text)
    container = values.pop("container", None)
    if container is None:
        raise RequestFileInvalid("container is missing: accepted is the container's name")
    memory = values.pop("memory", None)
    fraction = values.pop("fraction", None)
    if (memory is None) == (fraction is None):
        raise RequestFileInvalid("accepted is exactly one of memory and fraction")
    exempt = memory == "none"
    at_most = values.pop("at-most", None)
    devices = values.pop("devices", "1")
    cores = values.pop("cores", None)
    priority = values.pop("priority", None)
    region = values.pop("region", "emptyDir")
    return RequestFile(
        container=_container(container),
        memory_mib=None if memory is None or exempt else _mib("memory", memory),
        fraction=None if fraction is None else _fraction(fraction),
        exempt=exempt,
        at_most_mib=None if at_most is None else _mib("at-most", at_most),
        devices=_integer("devices", devices, 1, MOST_UINT64),
        cores=None if cores is None else _integer("cores", cores, 1, 100),
        priority=None if priority is None else _integer("priority", priority, 0, 1),
        region=_region(region),
        unknown=unknown,
    )
