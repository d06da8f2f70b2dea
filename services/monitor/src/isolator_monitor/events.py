"""Events of pods, created in the API server on a thread of its own."""

import datetime
import queue
import threading
import time

import kubernetes.client
import structlog
from kubernetes.client import Configuration

from isolator_core.cluster_api import ApiError, Gone, request
from isolator_monitor.alerts import Alert

COMPONENT = "kai-resource-isolator-monitor"
_MOST_WAITING = 1000

_log = structlog.get_logger()


class EventRecorder:
    """Creates Events one after another."""

    def __init__(self, configuration: Configuration, node_name: str) -> None:
        self._client = kubernetes.client.ApiClient(configuration)
        self._node_name = node_name
        self._waiting: queue.Queue[Alert] = queue.Queue(_MOST_WAITING)
        self._lost: queue.SimpleQueue[Alert] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="events", daemon=True).start()

    def record(self, alert: Alert) -> None:
        """Create an Event soon."""
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._lost.put(alert)

    def lost(self) -> list[Alert]:
        """Alerts that could not be recorded since this was last asked."""
        found = []
        while not self._lost.empty():
            found.append(self._lost.get())
        return found

    def _work(self) -> None:
        while True:
            alert = self._waiting.get()
            try:
                path = f"/api/v1/namespaces/{alert.namespace}/events"
                request(self._client, "POST", path, [], event(alert, self._node_name, time.time())).drain_conn()
            except (ApiError, Gone) as error:
                if isinstance(error, ApiError) and error.status == 409:
                    continue
                self._lost.put(alert)
                _log.warning("event_not_recorded", namespace=alert.namespace, pod=alert.pod, error=str(error))


def event(alert: Alert, node_name: str, now: float) -> dict[str, object]:
    """The Event (core/v1) for an alert at a Unix time.

    Its name is the same within an hour, so that a restarted monitor does not say the same twice; the API server forgets
    Events after an hour.
    """
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{alert.name}.{int(now // 3600):x}", "namespace": alert.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": alert.namespace,
            "name": alert.pod,
            "uid": alert.uid,
        },
        "type": "Warning",
        "reason": alert.reason,
        "message": alert.text[:1024],
        "source": {"component": COMPONENT, "host": node_name},
        "reportingComponent": COMPONENT,
        "reportingInstance": node_name,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
