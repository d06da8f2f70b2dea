"""Read what the node has of containers, below the roots that an operator named."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from isolator_core.region import Kind, Memory, Region, RegionError, open_beneath, read_region
from isolator_monitor.limit_files import LimitFiles, read_limit_files
from isolator_monitor.targets import Place, Root, Target

_log = structlog.get_logger()

Roots = Mapping[Root, Sequence[Path]]


class Reading(msgspec.Struct, frozen=True):
    """What was found of one container: a region, or why there is none."""

    uid: str
    container: str
    region: Region | None
    """Its processes without their memory, which is in `held`."""
    held: tuple[Memory, ...] = ()
    """By device of the region, the sum over its processes."""
    error: Kind | None = None
    detail: str = ""
    limit_files: LimitFiles | None = None
    limits_error: str = ""
    """Why the limits volume could not be read; empty if it was, or if there is none."""


def read_all(targets: Iterable[Target], roots: Roots) -> tuple[Reading, ...]:
    """Readings of all containers, in their order. A fault of ours with one of them costs that one alone."""
    readings = []
    for target in targets:
        try:
            readings.append(_read(target, roots))
        except Exception:
            _log.exception("reading_failed", uid=target.uid, container=target.container)
            readings.append(Reading(target.uid, target.container, None, (), Kind.INTERNAL, "see the reader's log"))
    return tuple(readings)


def _read(target: Target, roots: Roots) -> Reading:
    region, error, detail = _region(target.region, roots)
    limit_files, limits_error = _limits(target.limits, roots)
    return Reading(
        target.uid,
        target.container,
        region and without_memory(region),
        held(region) if region else (),
        error,
        detail,
        limit_files,
        limits_error,
    )


def held(region: Region) -> tuple[Memory, ...]:
    """What the processes of a region hold together, by device."""
    return tuple(_sum([process.memory[index] for process in region.processes]) for index in range(len(region.devices)))


def _sum(parts: Sequence[Memory]) -> Memory:
    return Memory(
        context=sum(part.context for part in parts),
        module=sum(part.module for part in parts),
        buffer=sum(part.buffer for part in parts),
        total=sum(part.total for part in parts),
        sm_percent=sum(part.sm_percent for part in parts),
    )


def without_memory(region: Region) -> Region:
    """The region as it goes to the server: sums are enough there, and a hundredth of the size."""
    return msgspec.structs.replace(
        region, processes=tuple(msgspec.structs.replace(process, memory=()) for process in region.processes)
    )


def _region(places: Sequence[Place], roots: Roots) -> tuple[Region | None, Kind | None, str]:
    """The region in the first place that has one; of several things that are wrong, the last that is not absence."""
    error, detail = Kind.ABSENT, "no region in any place"
    for place in places:
        for root in roots.get(place.root, ()):
            try:
                with open_beneath(root, *place.names) as directory:
                    return read_region(directory), None, ""
            except RegionError as failure:
                if failure.kind is not Kind.ABSENT:
                    error, detail = failure.kind, failure.detail
    return None, error, detail


def _limits(place: Place | None, roots: Roots) -> tuple[LimitFiles | None, str]:
    if place is None or not roots.get(place.root):
        return None, ""
    try:
        return read_limit_files(roots[place.root][0], place.names), ""
    except RegionError as failure:
        return None, failure.detail
