"""Events of pods, created in the API server on a thread of its own."""

import datetime
import queue
import threading

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
                request(self._client, "POST", path, [], event(alert, self._node_name, _now())).release_conn()
            except (ApiError, Gone) as error:
                if isinstance(error, ApiError) and error.status == 409:
                    continue
                self._lost.put(alert)
                _log.warning("event_not_recorded", namespace=alert.namespace, pod=alert.pod, error=str(error))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(alert: Alert, node_name: str, time: str) -> dict[str, object]:
    """The Event (core/v1) for an alert; `time` in RFC 3339."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": alert.name, "namespace": alert.namespace},
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
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
