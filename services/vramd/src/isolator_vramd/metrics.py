"""Metrics and probes on a port of their own."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from isolator_core import http_server
from isolator_vramd.affinity import Constraints, parse_constraints
from isolator_vramd.basis import Answer, Basis, Unknown
from isolator_vramd.store import NodeStore

_EVERY_NODE = parse_constraints(Constraints())
_LOOP_SECONDS = 5.0
"""How long a scrape waits for the event loop; it is never busy that long."""


class Calls:
    """What clients ask and how long it takes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "isolator_vramd_answers",
            "Answers of GetBasis: basis, or the cause for which it is unknown.",
            ("answer",),
            registry=registry,
        )
        self._seconds = Histogram(
            "isolator_vramd_get_basis_seconds",
            "Time to answer GetBasis, without the transport.",
            buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25),
            registry=registry,
        )
        self.subscribers = Gauge("isolator_vramd_subscribers", "Open WatchBasis streams.", registry=registry)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time one GetBasis."""
        start = time.perf_counter()
        yield
        self._seconds.observe(time.perf_counter() - start)

    def answered(self, answer: Answer) -> None:
        """Count one answer of GetBasis."""
        self._answers.labels("basis" if isinstance(answer, Basis) else answer.cause.value.replace(" ", "_")).inc()


class SourceMetrics:
    """How the source fares."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lists = Counter("isolator_vramd_source_lists", "Complete reads of all nodes.", registry=registry)
        self.events = Counter(
            "isolator_vramd_source_events", "Watch events by type, bookmarks among them.", ("type",), registry=registry
        )
        self.failures = Counter(
            "isolator_vramd_source_failures",
            "Reads and watches that failed and are tried again, by reason.",
            ("reason",),
            registry=registry,
        )


class StoreCollector(Collector):
    """What the store knows, taken on the event loop at each scrape."""

    def __init__(self, store: NodeStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """The gauges of this moment; the basis and the age have no sample while they are unknown."""
        future = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop)
        answer, age, index_counts = future.result(_LOOP_SECONDS)
        basis = GaugeMetricFamily("isolator_vramd_basis_mib", "MiB of the smallest GPU of the cluster.")
        if isinstance(answer, Basis):
            basis.add_metric((), answer.basis_mib)
        yield basis
        unknown = GaugeMetricFamily("isolator_vramd_basis_unknown", "1 while no basis is known.")
        unknown.add_metric((), float(isinstance(answer, Unknown)))
        yield unknown
        ages = GaugeMetricFamily(
            "isolator_vramd_source_age_seconds", "Seconds since the source last confirmed what is known of the nodes."
        )
        if age is not None:
            ages.add_metric((), age)
        yield ages
        nodes = GaugeMetricFamily(
            "isolator_vramd_gpu_nodes", "GPU nodes: with known memory, without, taking no shares.", labels=("memory",)
        )
        for name, count in index_counts.items():
            nodes.add_metric((name,), count)
        yield nodes

    async def _snapshot(self) -> tuple[Answer, float | None, dict[str, int]]:
        index = self._store.index
        unknown, no_share = index.no_memory.bit_count(), index.no_share.bit_count()
        counts = {"known": len(index) - unknown - no_share, "unknown": unknown, "takes_no_share": no_share}
        return self._store.answer(_EVERY_NODE), self._store.age_seconds(), counts


def serve(registry: CollectorRegistry, store: NodeStore, address: str, port: int) -> ThreadingHTTPServer:
    """A server, listening, of `/metrics`, `/healthz` (the process answers) and `/readyz` (answers are meaningful)."""

    def answer(path: str, accept: str) -> http_server.Answer:
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return 200, content_type, encode(registry)
        if path == "/healthz":
            return http_server.text(200, "ok")
        if path == "/readyz":
            return http_server.text(200, "ok") if store.ready else http_server.text(503, "the nodes were not read yet")
        return http_server.text(404, "/metrics, /healthz and /readyz are here")

    return http_server.make_server(address, port, answer)
