"""The files of a container's limits volume as the kubelet wrote them on the node, and the limit that they mean."""

import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from isolator_core import names, portion, request_file
from isolator_core.go_numbers import parse_float
from isolator_core.region import Kind, RegionError, open_beneath
from isolator_core.region.opening import as_region_error, open_regular
from isolator_core.request_file import RequestFile, RequestFileInvalid

_GENERATION = re.compile(r"\.\.[0-9A-Za-z_.]+")
_MEMORY_SIZE = re.compile(r"[ \t\r\n]*(0[xX][0-9a-fA-F]+|[0-9]+)[ \t\r\n]*([kKmMgG]?)[ \t\r\n]*")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST = (1 << 64) - 1
_MIB = 1 << 20
_LARGEST = 1023
"""The library refuses a longer file (`native/hami-core/src/limits.c`), and a pod can mount hundreds of them."""


class LimitFiles(msgspec.Struct, frozen=True):
    """Texts of the files, of one generation; None where a file is absent."""

    request: str | None
    kai: str | None


def read_limit_files(root: Path, path: tuple[str, ...]) -> LimitFiles:
    """Read the files of a projected volume. Raises RegionError; `absent` before the kubelet has made the volume."""
    with open_beneath(root, *path) as volume:
        try:
            generation = os.readlink("..data", dir_fd=volume)
        except OSError as error:
            raise as_region_error(error, "..data") from error
        if not _GENERATION.fullmatch(generation):
            raise RegionError(Kind.LINK, f"..data leads to {generation!r}")
        with open_beneath(Path(f"/proc/self/fd/{volume}"), generation) as directory:
            return LimitFiles(_text(directory, names.REQUEST_FILE), _text(directory, names.LIMIT_KEY))


def _text(directory: int, name: str) -> str | None:
    try:
        with open_regular(directory, name) as (file, found):
            if found.st_size > _LARGEST:
                raise RegionError(Kind.SIZE, f"{name} has {found.st_size} bytes")
            return os.pread(file, _LARGEST, 0).decode(errors="replace")
    except RegionError as error:
        if error.kind is Kind.ABSENT:
            return None
        raise


class LimitInvalid(Exception):
    """No limit follows from the files. The text says why."""


def parse_request(files: LimitFiles) -> RequestFile:
    """The request. Raises LimitInvalid."""
    if files.request is None:
        raise LimitInvalid("the file request is missing")
    try:
        return request_file.parse(files.request)
    except RequestFileInvalid as error:
        raise LimitInvalid(f"the file request is invalid: {error}") from error


def limit_on_card(files: LimitFiles, card_bytes: int | None) -> int | None:
    """Bytes that libvgpu enforces on a card of `card_bytes` by NVML; 0 = none, None = not without the card's memory.

    KAI's file counts, but not above what the request can mean on this card, if that is known, by KAI's arithmetic;
    without it, the request. Raises LimitInvalid where libvgpu refuses to start.
    """
    request = parse_request(files)
    kai = None if files.kai is None else _kai_bytes(files.kai)
    if request.exempt:
        return 0
    most = _most_by_kai(request, card_bytes)
    limit = _request_bytes(request, card_bytes) if kai is None else kai if most is None else min(kai, most)
    if limit is None or request.at_most_mib is None:
        return limit
    return min(limit, request.at_most_mib * _MIB)


def _kai_bytes(text: str) -> int:
    """Bytes of KAI's file by HAMi-core's grammar: `0x` is hexadecimal, a leading 0 octal, a suffix a binary unit."""
    value = 0
    match = _MEMORY_SIZE.fullmatch(text)
    if match:
        digits = match[1].lower()
        base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
        with suppress(ValueError):
            value = int(digits, base) * _FACTORS[match[2].lower()]
    if not 0 < value <= _MOST:
        raise LimitInvalid(f"{names.LIMIT_KEY} is {text[:64]!r}: accepted is a number of MiB above 0, such as 4147m")
    return value


def _request_bytes(request: RequestFile, card_bytes: int | None) -> int | None:
    if request.memory_mib is not None:
        return request.memory_mib * _MIB
    if card_bytes is None or request.fraction is None:
        return None
    numerator, denominator = request_file.ratio(request.fraction)
    return max(1, numerator * card_bytes // denominator)


def _most_by_kai(request: RequestFile, card_bytes: int | None) -> int | None:
    """The most that KAI can have meant by a request on a card: its label is the card's memory in MiB."""
    if card_bytes is None:
        return None
    label = card_bytes // _MIB
    if request.memory_mib is not None:
        share = portion.portion_of_memory(request.memory_mib, portion.floored_card_mib(label))
    else:
        share = parse_float(request.fraction or "") or 0.0
    most = portion.limit_mib(label, portion.portion_text(min(share, 1.0)))
    return most * _MIB if most else _request_bytes(request, card_bytes)
