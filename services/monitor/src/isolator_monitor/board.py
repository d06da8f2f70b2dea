"""The picture for people: cards and containers, as `/board.json` gives it to the page and to `top`."""

from collections.abc import Iterable

import msgspec

from isolator_monitor.containers import limits_on_cards
from isolator_monitor.view import View


class Card(msgspec.Struct, frozen=True):
    """One GPU of the node. Bytes and percent; None where NVML does not say."""

    index: int
    uuid: str
    name: str
    total: int | None
    used: int | None
    limits: int
    """Sum of the limits of the containers on it."""
    utilization: int | None


class Row(msgspec.Struct, frozen=True):
    """One container on one GPU."""

    namespace: str
    pod: str
    container: str
    device: int
    uuid: str
    card: int | None
    """Index of the node's GPU, where it is known."""
    used: int | None
    limit: int | None
    """Bytes; 0 = none."""
    processes: int
    sm_percent: int | None
    sm_limit_percent: int | None
    refusals: int | None
    problems: tuple[str, ...]
    """Sentences: why the container is not held to its share, why its region cannot be read."""


class Board(msgspec.Struct, frozen=True):
    """The node at one moment."""

    taken: float
    """Unix seconds."""
    interval: float
    """Seconds between two readings."""
    nvml_error: str
    cards: tuple[Card, ...]
    rows: tuple[Row, ...]


def board(view: View, interval_seconds: float) -> Board:
    """The picture of a view, containers by namespace and name."""
    limits = limits_on_cards(view.containers)
    cards = tuple(
        Card(
            gpu.index,
            gpu.uuid,
            gpu.name,
            gpu.memory_total,
            gpu.memory_used,
            limits.get(gpu.uuid, 0),
            gpu.utilization,
        )
        for gpu in view.node.gpus
    )
    rows = sorted(_rows(view), key=lambda row: (row.namespace, row.pod, row.container, row.device))
    return Board(view.node.taken, interval_seconds, view.node.nvml_error, cards, tuple(rows))


def _rows(view: View) -> Iterable[Row]:
    indices = {uuid: gpu.index for gpu in view.node.gpus for uuid in (gpu.uuid, *gpu.mig)}
    problems: dict[tuple[str, str], list[str]] = {}
    for found in view.unprotected:
        problems.setdefault((found.uid, found.container), []).append(f"{found.reason}: {found.text}")
    for state in view.containers:
        said = problems.get((state.uid, state.container), [])
        if state.error not in ("", "absent"):
            said = [*said, f"{state.error}: {state.detail}"]
        for device in state.devices:
            yield Row(
                namespace=state.namespace,
                pod=state.pod,
                container=state.container,
                device=device.index,
                uuid=device.uuid,
                card=indices.get(device.uuid),
                used=device.total,
                limit=device.limit,
                processes=len(state.region.processes) if state.region else 0,
                sm_percent=device.sm_percent,
                sm_limit_percent=device.sm_limit_percent if device.sm_limit_percent in range(1, 100) else None,
                refusals=device.refusals,
                problems=tuple(said),
            )
        if not state.devices:
            yield Row(
                namespace=state.namespace,
                pod=state.pod,
                container=state.container,
                device=0,
                uuid="",
                card=None,
                used=None,
                limit=None,
                processes=len(state.region.processes) if state.region else 0,
                sm_percent=None,
                sm_limit_percent=None,
                refusals=None,
                problems=tuple(said),
            )
