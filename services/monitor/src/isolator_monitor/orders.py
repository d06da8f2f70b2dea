"""Who gives way to whom: how long a container of priority 0 keeps a card busy, and what that means for others there.

Containers share no memory, so this is where the two meet. The library of the one counts in its region what its launches
cost, those of the others heed an order in theirs, which ends by itself when it is not given again.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

MILLISECOND = 1_000_000
VALID_NS = 2000 * MILLISECOND
"""An order that is older is none: whoever gave it may be gone (`src/compute/orders.c` of the library)."""
AGAIN_NS = 500 * MILLISECOND
"""An order that goes on is given again after that."""
LINGER_NS = MILLISECOND
"""Costs are estimates, and the next launch of the same work often comes at once."""
RESTING_NS = 1000 * MILLISECOND
"""Who has not launched for so long is at rest, and others may run what is long."""
LONGEST_NS = 10_000 * MILLISECOND
"""No estimate reaches farther: it may be wrong, and a region is its tenant's to write."""
PAUSES = 64
"""Pauses by which the next is judged: it is expected to be as long as all of them but a twentieth. So long work of
others meets one of twenty at most, and makes it twice as long at most. Who works at random is expected at any time."""
LEAST_PAUSES = 16
"""Before there are so many, nothing is expected."""


class Order(IntEnum):
    """What others on the card may do."""

    NONE = 0
    BOUNDED = 1
    """Launch, with little waiting on the card."""
    SHORT = 2
    """The same, and nothing that takes long, but for what is done before the next work is expected."""
    HOLD = 3
    """Launch nothing."""


@dataclass
class Work:
    """What one container has launched on one card."""

    paid: int | None = None
    """Nanoseconds of GPU time that all its launches cost together; None before it was looked at."""
    until_ns: int = 0
    """The card is done with it then, if it is alone there."""
    launched_ns: int = 0
    """When a launch was seen last."""
    pauses: deque[int] = field(default_factory=lambda: deque(maxlen=PAUSES))
    """Nanoseconds between being done and launching again."""
    likely_pause_ns: int = 0

    def observe(self, now_ns: int, paid: int) -> None:
        """Take in how much has been paid in all. A region that was made anew begins anew."""
        added = 0 if self.paid is None else paid - self.paid
        self.paid = paid
        if added > 0:
            if self.launched_ns and now_ns > self.until_ns:
                self.pauses.append(now_ns - self.until_ns)
                self.likely_pause_ns = sorted(self.pauses)[len(self.pauses) // 20]
            self.until_ns = min(max(self.until_ns, now_ns) + added, now_ns + LONGEST_NS)
            self.launched_ns = now_ns

    def order(self, now_ns: int) -> Order:
        """What it means for others on the card."""
        if now_ns < self.until_ns + LINGER_NS:
            return Order.HOLD
        return Order.SHORT if self.launched_ns and now_ns - self.launched_ns < RESTING_NS else Order.BOUNDED

    def expected_ns(self) -> int:
        """When it is expected to launch again, at the earliest; 0 where that cannot be told."""
        if len(self.pauses) < LEAST_PAUSES:
            return 0
        return self.until_ns + self.likely_pause_ns - self.likely_pause_ns // 8
