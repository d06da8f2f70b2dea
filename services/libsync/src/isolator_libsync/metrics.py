"""What libsync measures of itself and of the node."""

import time
from collections.abc import Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics

from isolator_libsync.findings import Code, Damage, Finding
from isolator_libsync.keep import Wanted


class Metrics:
    """The series of one process, each from its start."""

    def __init__(self, node: Wanted) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._ready = Gauge(
            "isolator_libsync_ready", "1 if the node is right, 0 if something is wrong with it.", registry=self.registry
        )
        self._findings = Gauge(
            "isolator_libsync_findings",
            "What is wrong with the node now, by kind.",
            ["finding"],
            registry=self.registry,
        )
        self._installed = Counter(
            "isolator_libsync_installed",
            "Things put right before the node was right for the first time: installation and upgrade.",
            registry=self.registry,
        )
        self._repaired = Counter(
            "isolator_libsync_repaired",
            "Damage put right since, by kind.",
            ["finding"],
            registry=self.registry,
        )
        self._passed = Gauge(
            "isolator_libsync_last_pass_timestamp_seconds", "When the node was last looked at.", registry=self.registry
        )
        self.watching = Gauge(
            "isolator_libsync_watching",
            "1 if the kernel tells of changes, 0 if they are found only by looking from time to time.",
            registry=self.registry,
        )
        self._node_updates = Counter(
            "isolator_libsync_node_updates",
            "Attempts to write the node's label or condition, by result.",
            ["result"],
            registry=self.registry,
        )
        library = Gauge(
            "isolator_libsync_library_info", "The library that is kept.", ["sha256"], registry=self.registry
        )
        library.labels(node.files[0].sha256).set(1)
        for code in get_args(Code):
            self._findings.labels(code)
        for code in get_args(Damage):
            self._repaired.labels(code)
        for result in ("written", "failed"):
            self._node_updates.labels(result)

    def passed(self, remaining: Iterable[Finding], repaired: Iterable[Finding], *, settled: bool) -> None:
        """Record one pass; `settled` if the node was right before."""
        codes = [finding.code for finding in remaining]
        for code in get_args(Code):
            self._findings.labels(code).set(codes.count(code))
        self._ready.set(not codes)
        self._passed.set(time.time())
        for finding in repaired:
            if settled:
                self._repaired.labels(finding.code).inc()
            else:
                self._installed.inc()

    def node_updated(self, written: bool) -> None:
        """Record one attempt to write the node's label or condition."""
        self._node_updates.labels("written" if written else "failed").inc()
