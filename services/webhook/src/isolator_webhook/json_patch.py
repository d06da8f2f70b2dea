"""JSON Patch operations (RFC 6902), as the API server applies them."""

from collections.abc import Sequence
from typing import Any

import msgspec


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation."""

    op: str
    path: str
    value: Any = None


def pointer(part: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def append(array: str, missing: bool, values: Sequence[Any]) -> list[Operation]:
    """Operations that append to an array, which is made where it is missing."""
    if not values:
        return []
    if missing:
        return [Operation("add", array, list(values))]
    path = f"{array}/-"
    return [Operation("add", path, value) for value in values]
