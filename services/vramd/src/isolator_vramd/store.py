"""What is known of the nodes at the moment, how old it is, and who waits for it to change.

Lives on the event loop's thread; sources in other threads hand over with `call_soon_threadsafe`.
"""

import asyncio
from collections.abc import Callable, Iterable

from isolator_vramd.affinity import Parsed
from isolator_vramd.basis import NOT_READ, Answer, Basis, basis_of
from isolator_vramd.index import NodeIndex, Running
from isolator_vramd.nodes import GpuNode

Change = tuple[str, GpuNode | None]
"""A node's name and what it is now; None where it is gone or has no GPU (any more)."""


class NodeStore:
    """The GPU nodes, when they were last confirmed, and a signal for every change.

    `clock` gives seconds that only go forward. With `override_mib` (PER_GPU_VRAM_MIB) every answer is that.
    """

    def __init__(self, override_mib: int | None, clock: Callable[[], float]) -> None:
        self.index = NodeIndex()
        self.version = 0
        self._override = None if override_mib is None else Basis(override_mib, override=True)
        self._clock = clock
        self._confirmed_at: float | None = None
        self._changed = asyncio.Event()

    @property
    def read(self) -> bool:
        """Whether the nodes were read completely at least once."""
        return self._confirmed_at is not None

    @property
    def ready(self) -> bool:
        """Whether answers are meaningful: the nodes were read, or the basis was set by hand."""
        return self.read or self._override is not None

    def age_seconds(self) -> float | None:
        """Seconds since the source last confirmed what is known; None before the first read."""
        return None if self._confirmed_at is None else max(0.0, self._clock() - self._confirmed_at)

    def answer(self, constraints: Parsed) -> Answer:
        """The basis for a pod with these constraints."""
        if self._override is not None:
            return self._override
        return basis_of(self.index, constraints) if self.read else NOT_READ

    def running(self, constraints: Parsed) -> tuple[Running, ...]:
        """What the nodes run that take shares and that a pod with these constraints can land on."""
        return self.index.running(self.index.eligible(constraints) & ~self.index.no_share)

    def confirm(self) -> None:
        """The source says that nothing else has changed so far."""
        self._confirmed_at = self._clock()

    def replace(self, nodes: Iterable[GpuNode]) -> None:
        """These are all GPU nodes; whatever else was known is gone."""
        first = not self.read
        gone = set(self.index.names())
        changed = False
        for node in nodes:
            gone.discard(node.name)
            changed |= self.index.put(node)
        for name in gone:
            changed |= self.index.remove(name)
        self.confirm()
        if changed or first:
            self._signal()

    def apply(self, changes: Iterable[Change]) -> None:
        """These nodes changed, in this order."""
        changed = False
        for name, node in changes:
            changed |= self.index.remove(name) if node is None else self.index.put(node)
        self.confirm()
        if changed:
            self._signal()

    def wake(self) -> None:
        """Let everyone who waits look again, as at a change."""
        self._signal()

    async def changed_since(self, version: int) -> None:
        """Return once something changed after `version`."""
        while self.version == version:
            await self._changed.wait()

    def _signal(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
