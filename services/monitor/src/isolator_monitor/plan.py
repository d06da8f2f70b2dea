"""What the server lets the steerer know, and what that answers: as plain values, without a byte that a tenant wrote."""

import msgspec

from isolator_monitor.targets import Place

FIRST = 0
"""The priority that others give way to, by the `priority` key of the `request` file (HAMi: `CUDA_TASK_PRIORITY`)."""
LAST = 1
"""The priority without that key."""


class Steered(msgspec.Struct, frozen=True):
    """A container whose region is written into."""

    uid: str
    container: str
    region: tuple[Place, ...]
    """Where the region can be, most likely first."""
    priority: int = LAST
    cards: tuple[str, ...] = ()
    """UUIDs of the GPUs that it has by KAI or by NVML: on no others does anyone give way to it."""


class Plan(msgspec.Struct, frozen=True):
    """What holds until the next plan."""

    containers: tuple[Steered, ...] = ()
    busy: dict[str, dict[int, int]] = {}
    """Percent by PID by GPU UUID, of the GPUs whose driver tells; a process that is not named there is idle."""


class Report(msgspec.Struct, frozen=True):
    """What the steerer did in its last pass."""

    told: int = 0
    """Processes whose PID stands in their slot."""
    giving_way: int = 0
    """Containers that have an order because of another's priority."""
    failures: dict[str, int] = {}
    """Regions that could not be opened or written, by kind, since it started."""
