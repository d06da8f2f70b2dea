"""What follows for the steerer from a view of the node."""

from collections.abc import Iterable

from isolator_monitor.containers import ContainerState
from isolator_monitor.gpus import Gpu
from isolator_monitor.limit_files import LimitInvalid, parse_request
from isolator_monitor.plan import LAST, Plan, Steered
from isolator_monitor.readings import Reading
from isolator_monitor.targets import Target


def plan(states: Iterable[ContainerState], gpus: Iterable[Gpu], targets: Iterable[Target]) -> Plan:
    """The plan that follows from one view: every container that this project's library counts in a region, or will."""
    places = {(target.uid, target.container): target.region for target in targets if target.region}
    return Plan(
        tuple(
            Steered(
                state.uid,
                state.container,
                places[state.uid, state.container],
                _priority(state.reading),
                tuple(sorted(state.cards)),
            )
            for state in states
            if (state.uid, state.container) in places
            and (state.region is None or (state.region.extended and state.region.managed))
        ),
        {gpu.uuid: busy for gpu in gpus if (busy := _busy(gpu)) is not None},
    )


def _priority(reading: Reading | None) -> int:
    """By the limits volume, which the tenant cannot write. Limits that are not valid put nobody first."""
    if reading is None or reading.limit_files is None:
        return LAST
    try:
        priority = parse_request(reading.limit_files).priority
    except LimitInvalid:
        return LAST
    return LAST if priority is None else priority


def _busy(gpu: Gpu) -> dict[int, int] | None:
    if gpu.processes is None or any(process.sm_percent is None for process in gpu.processes):
        return None
    return {process.pid: process.sm_percent for process in gpu.processes if process.sm_percent}
