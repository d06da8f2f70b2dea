"""What was seen at one moment, and what has added up since the monitor started."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isolator_core.region import Kind
from isolator_monitor import containers, protection
from isolator_monitor.containers import ContainerState, Identities
from isolator_monitor.node import NodeReading
from isolator_monitor.plan import Report
from isolator_monitor.pods import Pod
from isolator_monitor.protection import Unprotected

_NO_ERROR = ("", str(Kind.ABSENT), str(Kind.NOT_READY))


@dataclass(frozen=True)
class View:
    """All that metrics, the page and the table are made of."""

    node: NodeReading
    containers: tuple[ContainerState, ...]
    unprotected: tuple[Unprotected, ...]
    pods: int
    """Pods on this node that have not ended."""
    pods_confirmed: float
    """Unix seconds when the list of pods was last known to be right."""
    memory_seconds: dict[tuple[str, str, int], float]
    """Byte seconds held, by pod UID, container and device index."""
    region_errors: dict[str, int]
    """By kind."""
    pods_failures: dict[str, int]
    """How often the API server failed to tell of pods, by reason."""
    steering: Report | None = None
    """What the steerer did last; None without one, or where it does not answer."""
    steered: bool = False
    """A steerer belongs to this monitor."""


@dataclass
class Observer:
    """Makes views. Keeps what must outlive one of them."""

    container_dir: str
    reservation_namespace: str
    _identities: Identities = field(default_factory=Identities)
    _memory_seconds: dict[tuple[str, str, int], float] = field(default_factory=dict)
    _region_errors: Counter[str] = field(default_factory=Counter)
    _last: float | None = None
    """By the monotonic clock."""

    def observe(
        self, pods: Iterable[Pod], confirmed: float, node: NodeReading, pods_failures: Mapping[str, int] | None = None
    ) -> View:
        """The view of now. Memory held is counted from one view to the next."""
        pods = tuple(pods)
        states = containers.build(pods, node, self._identities, self.reservation_namespace)
        elapsed = 0.0 if self._last is None else node.clock - self._last
        self._last = node.clock
        kept = {}
        for state in states:
            if state.error not in _NO_ERROR:
                self._region_errors[state.error] += 1
            for device in state.devices:
                key = (state.uid, state.container, device.index)
                # One that was not there before has held nothing since, however long ago that was.
                before = self._memory_seconds.get(key)
                kept[key] = 0.0 if before is None else before + (device.total or 0) * elapsed
        self._memory_seconds = kept
        return View(
            node=node,
            containers=states,
            unprotected=protection.find(states, pods, self.container_dir, node.host_problem),
            pods=sum(not pod.ended for pod in pods),
            pods_confirmed=confirmed,
            memory_seconds=kept,
            region_errors=dict(self._region_errors),
            pods_failures=dict(pods_failures or {}),
        )
