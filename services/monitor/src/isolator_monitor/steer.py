"""`isolator-monitor steer`: write into containers' regions what only the node knows.

A part of its own, since the others must not be able to write a tenant's file: it has no API token and no listener, and
opens nothing but the regions that the server names (`plan.py`).
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

import structlog

from isolator_core.region import Kind, RegionError, open_beneath
from isolator_monitor import link
from isolator_monitor.orders import AGAIN_NS, LINGER_NS, Order, Work
from isolator_monitor.plan import FIRST, Plan, Report, Steered
from isolator_monitor.readings import Roots
from isolator_monitor.settings import SteerSettings
from isolator_monitor.steered import SteeredRegion, open_region
from isolator_monitor.targets import Root

_log = structlog.get_logger()

T = TypeVar("T")
A = TypeVarTuple("A")

LOOK_NS = 1_000_000_000
"""From one look for new regions and processes to the next."""
ORDER_NS = 500_000
"""From one look at whether someone works to the next; a twentieth of a core goes into it."""
IDLE_NS = 20_000_000
"""The same when no container of priority 0 has launched for `ACTIVE_NS`."""
ACTIVE_NS = 10_000_000_000
REST_NS = 5_000_000_000
"""HAMi's monitor counts `recent_kernel` down that often."""
SOON_SECONDS = 0.01
AVOID_NS = 60_000_000_000
"""A region whose locks take too long to look through is left alone for that long."""

_Key = tuple[str, str]


_Device = tuple[SteeredRegion, int]


@dataclass
class _Card:
    """One GPU on which some give way to others."""

    first: dict[_Key, tuple[_Device, Work]] = field(default_factory=dict)
    others: dict[_Key, _Device] = field(default_factory=dict)
    order: Order = Order.NONE
    """What the others were told last, and when."""
    given_ns: int = 0

    def next_ns(self, now_ns: int) -> int:
        """When to look at it again."""
        works = [work for _, work in self.first.values()]
        if self.order == Order.HOLD:
            # Whatever is launched meanwhile only makes it longer.
            return min(max(work.until_ns for work in works) + LINGER_NS, self.given_ns + AGAIN_NS)
        launched_ns = max(work.launched_ns for work in works)
        return now_ns + (ORDER_NS if launched_ns and now_ns - launched_ns < ACTIVE_NS else IDLE_NS)


class Steering:
    """The regions of the last plan."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._plan = Plan()
        self._report = Report()
        self._failures: Counter[str] = Counter()
        self._regions: dict[_Key, SteeredRegion] = {}
        self._avoided: dict[_Key, int] = {}
        self._cards: dict[str, _Card] = {}
        self._shown: Plan | None = None
        self._rested_ns = 0
        self._look_ns = 0

    def adopt(self, plan: Plan) -> Report:
        """Go by another plan; what was done last. For any thread."""
        self._plan = plan
        return self._report

    def step(self, now_ns: int) -> int:
        """Do what is due at a time of the monotonic clock; when there is something to do again."""
        if now_ns >= self._look_ns:
            self._look(now_ns)
            self._look_ns = now_ns + LOOK_NS
        self._give_orders(now_ns)
        return min([self._look_ns, *(card.next_ns(now_ns) for card in self._cards.values())])

    def close(self) -> None:
        """Take back the orders and let go of the regions."""
        for card in self._cards.values():
            for key, (region, device) in card.others.items():
                self._try(key, region.give, device, Order.NONE, 0)
        self._replace({})

    def _look(self, now_ns: int) -> None:
        plan = self._plan
        regions: dict[_Key, SteeredRegion] = {}
        for steered in plan.containers:
            key = (steered.uid, steered.container)
            if self._avoided.get(key, 0) <= now_ns:
                region = self._open(steered, now_ns)
                if region:
                    regions[key] = region
        self._replace(regions)
        self._avoided = {key: until for key, until in self._avoided.items() if until > now_ns}
        if plan is not self._shown:
            self._shown = plan
            self._show_busy(plan)
        if now_ns - self._rested_ns >= REST_NS:
            self._rested_ns = now_ns
            for key, region in regions.items():
                self._try(key, region.let_rest)
        self._meet(plan)
        self._report = Report(
            told=sum(len(region.owners) for region in regions.values()),
            giving_way=len({key for card in self._cards.values() for key in card.others}),
            failures=dict(self._failures),
        )

    def _open(self, steered: Steered, now_ns: int) -> SteeredRegion | None:
        """The region in the first place that has one."""
        for place in steered.region:
            for root in self._roots.get(place.root, ()):
                try:
                    with open_beneath(root, *place.names) as directory:
                        return open_region(directory)
                except RegionError as error:
                    if error.kind is not Kind.ABSENT:
                        self._failures[str(error.kind)] += 1
                    if error.kind is Kind.LOCKS:
                        self._avoided[steered.uid, steered.container] = now_ns + AVOID_NS
                except Exception:
                    # A fault of ours with one container costs that one alone.
                    self._failures[str(Kind.INTERNAL)] += 1
                    _log.exception("region_failed", uid=steered.uid, container=steered.container)
        return None

    def _replace(self, regions: dict[_Key, SteeredRegion]) -> None:
        for region in self._regions.values():
            region.close()
        self._regions = regions

    def _show_busy(self, plan: Plan) -> None:
        for key, region in self._regions.items():
            for device, uuid in enumerate(region.uuids):
                if uuid in plan.busy and region.uuids.index(uuid) == device:
                    self._try(key, region.show_busy, device, plan.busy[uuid])

    def _meet(self, plan: Plan) -> None:
        """Find the cards on which living containers of both priorities are."""
        cards: dict[str, _Card] = {}
        for steered in plan.containers:
            key = (steered.uid, steered.container)
            region = self._regions.get(key)
            if not region or not region.owners:
                continue
            for device, uuid in enumerate(region.uuids):
                card = cards.setdefault(uuid, _Card())
                if steered.priority != FIRST:
                    card.others[key] = (region, device)
                elif uuid in steered.cards:
                    card.first[key] = ((region, device), self._work(uuid, key))
        for uuid, before in self._cards.items():
            card = cards.get(uuid, _Card())
            if card.first:
                card.order = before.order
                card.given_ns = before.given_ns if card.others.keys() <= before.others.keys() else 0
            for key in () if card.first else card.others.keys() & before.others.keys():
                region, device = card.others[key]
                self._try(key, region.give, device, Order.NONE, 0)
        self._cards = {uuid: card for uuid, card in cards.items() if card.first and card.others}

    def _work(self, uuid: str, key: _Key) -> Work:
        """What is known of a container's launches on a card."""
        card = self._cards.get(uuid)
        return card.first[key][1] if card and key in card.first else Work()

    def _give_orders(self, now_ns: int) -> None:
        for card in self._cards.values():
            order, expected = Order.NONE, []
            for key, ((region, device), work) in card.first.items():
                paid = self._try(key, region.paid, device)
                if paid is not None:
                    work.observe(now_ns, paid)
                wanted = work.order(now_ns)
                order = max(order, wanted)
                if wanted == Order.SHORT:
                    expected.append(work.expected_ns())
            if order != card.order or now_ns - card.given_ns >= AGAIN_NS:
                card.order, card.given_ns = order, now_ns
                for key, (region, device) in card.others.items():
                    self._try(key, region.give, device, order, now_ns, min(expected, default=0))

    def _try(self, key: _Key, do: Callable[[*A], T], *arguments: *A) -> T | None:
        """A fault with one region costs that one alone."""
        try:
            return do(*arguments)
        except RegionError as error:
            self._failures[str(error.kind)] += 1
            _log.debug("region_not_written", uid=key[0], container=key[1], error=str(error))
            return None


def steer(chosen: SteerSettings) -> int:
    """Steer until SIGTERM."""
    link.check_path("steerer", chosen.steerer_socket)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    kubelet = [chosen.kubelet_root] if chosen.kubelet_root else []
    for root in (*kubelet, *chosen.region_root):
        if not root.is_dir():
            _log.warning("root_missing", root=str(root))
    steering = Steering({Root.KUBELET: kubelet, Root.REGIONS: chosen.region_root})
    threading.Thread(target=link.answer_plans, args=(steering.adopt, chosen.steerer_socket), daemon=True).start()
    while not ended.is_set():
        pause = max(steering.step(time.monotonic_ns()) - time.monotonic_ns(), 0) / 1e9
        # To wait for an event takes longer to come back from.
        time.sleep(pause) if pause < SOON_SECONDS else ended.wait(pause)
    steering.close()
    _log.info("stopped")
    return 0
