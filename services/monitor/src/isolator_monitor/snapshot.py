"""What was seen of the node at one moment."""

import time
from dataclasses import dataclass

from isolator_monitor.gpus import Gpu
from isolator_monitor.pods import Pod
from isolator_monitor.readings import Reading


@dataclass(frozen=True)
class Snapshot:
    """All that metrics are made of."""

    taken: float
    """Unix seconds."""
    pods: dict[str, Pod]
    """By UID."""
    readings: tuple[Reading, ...]
    gpus: tuple[Gpu, ...]


def snapshot(pods: tuple[Pod, ...], readings: tuple[Reading, ...], gpus: tuple[Gpu, ...]) -> Snapshot:
    """A snapshot of now."""
    return Snapshot(time.time(), {pod.metadata.uid: pod for pod in pods}, readings, gpus)
