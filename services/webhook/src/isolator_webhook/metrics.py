"""What the webhook counts, and its metrics on a port of their own."""

import functools
import math
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from isolator_core import http_server
from isolator_webhook.basis import Basis, Known

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """The webhook's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reviews = Counter(
            "isolator_webhook_reviews",
            "Reviews that were answered, by outcome (allowed, patched, denied, failed, failed_open) and reason.",
            ("outcome", "reason"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "isolator_webhook_review_seconds",
            "Time from a review's whole body to its answer.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.rejected = Counter(
            "isolator_webhook_rejected_requests",
            "Requests to review that were no review: malformed, too_large, busy, gone, method.",
            ("reason",),
            registry=self.registry,
        )
        self.errors = Counter(
            "isolator_webhook_internal_errors", "Faults of the webhook itself.", registry=self.registry
        )
        self.findings = Counter(
            "isolator_webhook_guard_findings",
            "Ways to a GPU that the guard found in pods that had not asked for one, and what became of the pod.",
            ("way", "outcome"),
            registry=self.registry,
        )
        self.notices = Counter(
            "isolator_webhook_notices",
            "Sentences that authors of pods were told about shares that are in doubt.",
            registry=self.registry,
        )
        self.at_work = Gauge("isolator_webhook_requests_at_work", "Reviews at work now.", registry=self.registry)
        self._expires_at = math.nan
        Gauge(
            "isolator_webhook_certificate_expiry_seconds",
            "Seconds until the serving certificate expires, negative once it has, NaN before there is one.",
            registry=self.registry,
        ).set_function(lambda: self._expires_at - time.time())

    def certificate_expires(self, at: float) -> None:
        """Tell when the serving certificate expires, in seconds since 1970."""
        self._expires_at = at

    @functools.cached_property
    def _outcomes(self) -> dict[tuple[str, str], Counter]:
        return {}

    def reviewed(self, outcome: str, reason: str, seconds: float) -> None:
        """Count one review and its time. Looking a counter up by its labels each time takes longer than counting."""
        counter = self._outcomes.get((outcome, reason))
        if counter is None:
            counter = self._outcomes[outcome, reason] = self.reviews.labels(outcome, reason)
        counter.inc()
        self.seconds.observe(seconds)
        if reason == "internal_error":
            self.errors.inc()

    def watch_basis(self, basis: Callable[[], Basis], age: Callable[[], float]) -> None:
        """Show the basis that is in use, 0 while none is known, and for how long it may have been out of date."""

        def mib() -> float:
            now = basis()
            return float(now.mib) if isinstance(now, Known) else 0.0

        Gauge(
            "isolator_webhook_basis_mib", "The cluster's basis in use, 0 while none is known.", registry=self.registry
        ).set_function(mib)
        Gauge(
            "isolator_webhook_basis_age_seconds",
            "Seconds since vramd's stream last told of the basis, 0 while it is open and tells; how old what vramd "
            "knows is, its own isolator_vramd_source_age_seconds tells.",
            registry=self.registry,
        ).set_function(age)

    def watch_nodes(self, unfit: Callable[[], int]) -> None:
        """Show on how many GPU nodes no sharing pod starts."""
        Gauge(
            "isolator_webhook_nodes_without_image_volumes",
            "GPU nodes that cannot mount the library's image, so that no sharing pod starts there.",
            registry=self.registry,
        ).set_function(unfit)


def serve(metrics: Metrics, address: str, port: int) -> ThreadingHTTPServer:
    """A server, listening, of `/metrics`. Raises UserError where the port is taken."""

    def answer(path: str, accept: str) -> http_server.Answer:
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return 200, content_type, encode(metrics.registry)
        return http_server.text(404, "/metrics is here")

    return http_server.make_server(address, port, answer)
