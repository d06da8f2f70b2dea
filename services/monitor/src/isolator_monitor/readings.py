"""Read the regions of containers below the roots that an operator named."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from isolator_core.region import Kind, Region, RegionError, open_beneath, read_region
from isolator_monitor.targets import Target


class Reading(msgspec.Struct, frozen=True):
    """What was found of one container: a region, or why there is none."""

    target: Target
    region: Region | None
    error: Kind | None = None
    detail: str = ""


def read(target: Target, roots: Sequence[Path]) -> Reading:
    """The container's region under the first root that has one."""
    reading = Reading(target, None, Kind.ABSENT, "no region under any root")
    for root in roots:
        try:
            with open_beneath(root, target.directory) as directory:
                return Reading(target, read_region(directory))
        except RegionError as error:
            if error.kind is not Kind.ABSENT:
                reading = Reading(target, None, error.kind, error.detail)
    return reading


def read_all(targets: Iterable[Target], roots: Sequence[Path]) -> tuple[Reading, ...]:
    """Readings of all containers, in their order."""
    return tuple(read(target, roots) for target in targets)
