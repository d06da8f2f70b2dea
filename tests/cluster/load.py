"""Admissions without a pause, from several clients at once, while a test does something to what admits."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.cluster.client import Cluster, Object

CLIENTS = 6


@dataclass
class Load:
    """What became of the pods so far."""

    admitted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By what the API server said, or what was missing of the stored pod."""

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, reason: str) -> None:
        """One more pod; `reason` is empty for one that came out right."""
        with self._lock:
            if reason:
                self.refused[reason] += 1
            else:
                self.admitted += 1


@contextmanager
def admissions(cluster: Cluster, pod: Object, is_right: Callable[[Object], bool]) -> Iterator[Load]:
    """Create `pod` as a dry run again and again for the time of a block, `CLIENTS` at a time."""
    load = Load()
    stop = threading.Event()

    def create() -> None:
        while not stop.is_set():
            answer = cluster.create(pod, query={"dryRun": "All"})
            right = answer.status == 201 and is_right(answer.body)
            load.note("" if right else answer.message or "admitted, but not as it should be")

    clients = [threading.Thread(target=create, name=f"client {number}") for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield load
    finally:
        stop.set()
        for client in clients:
            client.join()
