"""This node's pods, by list and watch of the API server."""

import threading
import time
from collections import Counter
from collections.abc import Sequence

from kubernetes.client import Configuration

from isolator_core.cluster_api import ResourceApi
from isolator_core.list_watch import ListWatch
from isolator_monitor.pods import Pod, PodsUnknown

PATH = "/api/v1/pods"


class ClusterPods:
    """The pods of one node. `start` follows them on a thread of its own until `stop`."""

    def __init__(self, configuration: Configuration, node_name: str) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._confirmed: float | None = None
        self._failures: Counter[str] = Counter()
        self._stopping = threading.Event()
        api = ResourceApi(configuration, PATH, [("fieldSelector", f"spec.nodeName={node_name}")])
        self._source = ListWatch(api, Pod, self, self._stopping.wait)

    def start(self) -> None:
        """Follow the pods. A daemon: it may be in the middle of a connection attempt when the program has to end."""
        threading.Thread(target=self._source.run, name="pods", daemon=True).start()

    def stop(self) -> None:
        """Follow them no longer."""
        self._stopping.set()
        self._source.stop()

    def pods(self) -> tuple[tuple[Pod, ...], float]:
        """The pods of now, and when they were last known to be right. Raises PodsUnknown before the first list."""
        with self._lock:
            if self._confirmed is None:
                raise PodsUnknown("the API server has not listed this node's pods yet")
            return tuple(self._pods.values()), self._confirmed

    def failures(self) -> dict[str, int]:
        """How often the API server failed, by reason."""
        with self._lock:
            return dict(self._failures)

    def replace(self, objects: Sequence[Pod]) -> None:
        """These are all pods."""
        with self._lock:
            self._pods = {pod.metadata.uid: pod for pod in objects}
            self._confirmed = time.time()

    def apply(self, event: str, changed: Pod) -> None:
        """This pod is new, changed or gone."""
        with self._lock:
            if event == "DELETED":
                self._pods.pop(changed.metadata.uid, None)
            else:
                self._pods[changed.metadata.uid] = changed
            self._confirmed = time.time()

    def confirm(self) -> None:
        """Nothing else has changed so far."""
        with self._lock:
            self._confirmed = time.time()

    def failed(self, reason: str) -> None:
        """The API server failed."""
        with self._lock:
            self._failures[reason] += 1
