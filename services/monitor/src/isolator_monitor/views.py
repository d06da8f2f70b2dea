"""Views of the node one after another: pods, node and what outlives a view brought together."""

import dataclasses
import time

import structlog
from kubernetes.client import Configuration

from isolator_core import cluster_api
from isolator_core.errors import SettingsError, UserError
from isolator_monitor import alerts
from isolator_monitor.alerts import Alerts
from isolator_monitor.cluster_pods import ClusterPods
from isolator_monitor.events import EventRecorder
from isolator_monitor.link import LinkDown, RemoteSteerer
from isolator_monitor.node import Node
from isolator_monitor.planning import plan
from isolator_monitor.pods import PodsUnknown
from isolator_monitor.pods_file import PodsFile
from isolator_monitor.settings import PodSettings
from isolator_monitor.targets import Target, targets
from isolator_monitor.view import Observer, View

_log = structlog.get_logger()


class Views:
    """Views of the node, whoever reads it."""

    def __init__(self, chosen: PodSettings, node: Node, steerer: RemoteSteerer | None = None) -> None:
        """Begin to follow the pods. Raises SettingsError."""
        self._container_dir = chosen.container_dir
        self._node = node
        self._steerer = steerer
        self._steerer_said = ""
        self._observer = Observer(chosen.container_dir, chosen.reservation_namespace)
        self._by_name = chosen.pods_file is not None
        self._pods: PodsFile | ClusterPods
        recorder = None
        if chosen.pods_file and chosen.kubeconfig:
            raise SettingsError("--pods-file and --kubeconfig are both given: one source is accepted")
        if chosen.pods_file is not None:
            self._pods = PodsFile(chosen.pods_file)
        else:
            configuration, node_name = _cluster(chosen)
            self._pods = ClusterPods(configuration, node_name)
            self._pods.start()
            recorder = EventRecorder(configuration, node_name)
        self._alerts = Alerts(recorder)

    def take(self) -> View:
        """A view of now; what is wrong is told. Raises PodsUnknown, and what the node raises."""
        pods, confirmed = self._pods.pods()
        found = targets(pods, self._container_dir, by_name=self._by_name)
        reading = self._node.read(found)
        view = self._steer(self._observer.observe(pods, confirmed, reading, self._pods.failures()), found)
        uids = frozenset(pod.metadata.uid for pod in pods)
        self._alerts.tell(alerts.alerts(view.unprotected, pods), uids, time.monotonic())
        return view

    def _steer(self, view: View, found: tuple[Target, ...]) -> View:
        """Hand the steerer what follows from a view; without one that answers, containers go on without."""
        if self._steerer is None:
            return view
        report, said = None, ""
        try:
            report = self._steerer.adopt(plan(view.containers, view.node.gpus, found))
        except LinkDown as error:
            said = str(error)
        if said != self._steerer_said:
            self._steerer_said = said
            _log.warning("steerer_unavailable", error=said) if said else _log.info("steerer_available")
        return dataclasses.replace(view, steering=report, steered=True)

    def take_soon(self, patience_seconds: float) -> View:
        """A view as soon as the pods are known. Raises UserError if they are not in time."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                return self.take()
            except PodsUnknown as error:
                if time.monotonic() > deadline:
                    raise UserError(str(error)) from error
                time.sleep(0.1)


def _cluster(chosen: PodSettings) -> tuple[Configuration, str]:
    if not chosen.node_name:
        raise SettingsError("--node-name (NODE_NAME) is required without --pods-file (ISOLATOR_MONITOR_PODS_FILE)")
    if chosen.kube_context and not chosen.kubeconfig:
        raise SettingsError("--kube-context is given without --kubeconfig")
    configuration = cluster_api.load_configuration(
        chosen.kubeconfig,
        chosen.kube_context,
        otherwise="--kubeconfig (ISOLATOR_MONITOR_KUBECONFIG) or --pods-file (ISOLATOR_MONITOR_PODS_FILE)",
    )
    return configuration, chosen.node_name
