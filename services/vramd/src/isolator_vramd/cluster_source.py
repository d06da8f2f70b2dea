"""Nodes from the API server: a list in pages, then a watch from where it ended, for as long as the program runs."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from isolator_vramd.metrics import SourceMetrics
from isolator_vramd.node_api import ApiError, Gone, NodeApi, Status, failure_of_status
from isolator_vramd.nodes import GpuNode, Node, NodeList, gpu_node, gpu_nodes
from isolator_vramd.store import Change

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 60.0
WATCH_SECONDS = (240, 480)
"""A watch is asked to end within these, at random, so that replicas do not all come back at once."""

_log = structlog.get_logger()


class Sink(Protocol):
    """Where the nodes go: a NodeStore, or what hands over to one in another thread."""

    def replace(self, nodes: list[GpuNode]) -> None:
        """These are all GPU nodes."""

    def apply(self, changes: list[Change]) -> None:
        """These nodes changed."""

    def confirm(self) -> None:
        """Nothing else has changed so far."""


@dataclass
class Backoff:
    """How long to wait after each failure in a row: twice as long each time, of which half at random."""

    failures: int = 0

    def next(self, chance: float) -> float:
        """Seconds to wait now; `chance` is a random number from 0 to 1."""
        longest: float = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return longest * (0.5 + 0.5 * chance)

    def reset(self) -> None:
        """It worked: start over."""
        self.failures = 0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_decode_list = msgspec.json.Decoder(NodeList).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_status = msgspec.json.Decoder(Status).decode


class ClusterSource:
    """Keeps a sink in step with the cluster's nodes. `run` is for a thread of its own.

    `wait(seconds)` waits and returns True when it is time to stop.
    """

    def __init__(self, api: NodeApi, sink: Sink, metrics: SourceMetrics, wait: Callable[[float], bool]) -> None:
        self._api = api
        self._sink = sink
        self._metrics = metrics
        self._wait = wait
        self._version: str | None = None
        self._progressed = False
        self._stopping = False

    def stop(self) -> None:
        """Make `run` return soon; whoever waits in `wait` is the caller's to wake."""
        self._stopping = True
        self._api.stop()

    def run(self) -> None:
        """List and watch until stopped. Every failure is counted, logged and tried again after a growing wait."""
        backoff = Backoff()
        while not self._stopping:
            self._progressed = False
            failure: ApiError | None = None
            try:
                if self._version is None:
                    start = time.monotonic()
                    nodes = self.list()
                    _log.info("nodes_read", nodes=nodes, seconds=round(time.monotonic() - start, 3))
                self._watch()
            except Gone as error:
                failure = ApiError("gone", f"410: {error}")
                self._version = None
            except msgspec.DecodeError as error:
                failure = ApiError("malformed", str(error))
                self._version = None
            except ApiError as error:
                failure = error
            if self._progressed:
                backoff.reset()
            if self._stopping or (failure is None and self._progressed):
                continue
            seconds = backoff.next(random.random())
            if failure is not None:
                seconds = max(seconds, min(failure.retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS))
                self._metrics.failures.labels(failure.reason).inc()
                _log.warning(
                    "source_failed", reason=failure.reason, error=str(failure), retry_in_seconds=round(seconds, 1)
                )
            if self._wait(seconds):
                return

    def list(self) -> int:
        """Read all nodes, page by page, hand the GPU nodes over at once and return how many nodes there are.

        Raises Gone, ApiError and msgspec.DecodeError.
        """
        nodes: list[GpuNode] = []
        version, token, total = "", "", 0
        while True:
            page = _decode_list(self._api.page(token))
            items = page.items or []
            total += len(items)
            nodes += gpu_nodes(items)
            # The first page's: every page is of that version, and from an older one nothing is missed.
            version = version or page.metadata.resource_version
            token = page.metadata.continue_
            if not token:
                break
        self._sink.replace(nodes)
        self._version = version
        self._metrics.lists.inc()
        return total

    def _watch(self) -> None:
        for line in self._api.watch(self._version or "", random.randint(*WATCH_SECONDS)):
            event = _decode_event(line)
            self._metrics.events.labels(event.type if event.type in _TYPES else "other").inc()
            if event.type == "ERROR":
                status = _decode_status(event.object)
                raise failure_of_status(status.code, status.message)
            if event.type not in _TYPES:
                raise ApiError("malformed", f"unknown watch event {event.type!r}")
            node = _decode_node(event.object)
            self._hand_over(event.type, node)
            self._version = node.metadata.resource_version or self._version
            self._progressed = True

    def _hand_over(self, event_type: str, node: Node) -> None:
        if event_type == "BOOKMARK":
            self._sink.confirm()
        else:
            self._sink.apply([(node.metadata.name, None if event_type == "DELETED" else gpu_node(node))])


_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})
