"""The program `isolator-monitor`: its commands and settings."""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import structlog
from kubernetes.client import Configuration
from pydantic import Field

from isolator_core import cluster_api, names, settings
from isolator_core.errors import SettingsError, UserError
from isolator_core.settings import Command, PathList, Settings
from isolator_monitor import alerts, link, metrics, monitor, top
from isolator_monitor.alerts import Alerts
from isolator_monitor.clean import Cleaner
from isolator_monitor.cluster_pods import ClusterPods
from isolator_monitor.events import EventRecorder
from isolator_monitor.link import RemoteNode
from isolator_monitor.node import Node
from isolator_monitor.pods import PodsUnknown
from isolator_monitor.pods_file import PodsFile
from isolator_monitor.targets import Root, targets
from isolator_monitor.view import Observer, View

RESERVATION_NAMESPACE = "kai-resource-reservation"
ONCE_PATIENCE_SECONDS = 10.0
READER_PATIENCE_SECONDS = 30.0

_log = structlog.get_logger()


class NodeSettings(Settings):
    """Where containers' files are on this node."""

    kubelet_root: Path | None = Field(
        None,
        description="the kubelet's directory, for regions in emptyDir volumes and for limits, such as /var/lib/kubelet",
    )
    region_root: PathList = Field(
        (),
        description="directory of regions in hostPath volumes, ROOT/<pod uid>_<container>/usage.cache; may be repeated",
    )
    host_dir: Path | None = Field(
        None, description="the directory on the host that holds libvgpu.so, to notice what stands in its place"
    )


class PodSettings(Settings):
    """Which pods there are."""

    pods_file: Path | None = Field(
        None,
        description="a Kubernetes PodList in YAML or JSON instead of the API server, read again when it changes; its "
        "containers' regions are also looked for by name",
    )
    node_name: str | None = Field(
        None, validation_alias="NODE_NAME", description="name of this node, whose pods the API server is asked for"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig of the cluster; without it, the cluster that this runs in"
    )
    kube_context: str | None = Field(None, description="context of the kubeconfig; default its current one")
    container_dir: str = Field(names.CONTAINER_DIR, description="directory of libvgpu.so in containers")
    reservation_namespace: str = Field(RESERVATION_NAMESPACE, description="namespace of KAI's reservation pods")
    legacy_metrics: bool = Field(False, description="add upstream's metric names from before HAMi 2.9")


class OnceSettings(PodSettings, NodeSettings):
    """Settings of `once`."""


class ServeSettings(OnceSettings):
    """Settings of `serve`."""

    listen_address: str = Field("0.0.0.0", description="address to listen on")
    listen_port: int = Field(names.MONITOR_PORT, ge=0, le=65535, description="HTTP port; 0 takes a free one")
    reader_socket: Path | None = Field(
        None,
        description="Unix socket to listen on for `read`, which then reads the node in place of this process",
    )
    update_interval: float = Field(5.0, gt=0, le=3600, description="seconds from one reading to the next")


class ReadSettings(NodeSettings):
    """Settings of `read`."""

    reader_socket: Path = Field(description="Unix socket on which `serve` listens")
    nvml_patience: float = Field(5.0, gt=0, le=600, description="seconds after which NVML counts as hanging")


class TopSettings(Settings):
    """Settings of `top`."""

    url: str = Field(f"http://127.0.0.1:{names.MONITOR_PORT}", description="address of a monitor that serves")
    interval: float = Field(2.0, gt=0, le=3600, description="seconds from one picture to the next")
    once: bool = Field(False, description="show one picture and end, as when the output is no terminal")


class CleanSettings(Settings):
    """Settings of `clean`."""

    region_root: PathList = Field(min_length=1, description="directory of regions in hostPath volumes; may be repeated")
    kubelet_root: Path = Field(description="the kubelet's directory, which tells which pods are gone")
    least_age: float = Field(300.0, ge=0, description="seconds for which nothing must have changed in a region")
    budget: int = Field(1000, ge=1, description="directory entries that one pass looks at or removes, a root")
    interval: float = Field(60.0, gt=0, le=86400, description="seconds from one pass to the next")
    once: bool = Field(False, description="make one pass and end")


def _node(chosen: NodeSettings, nvml_patience_seconds: float) -> Node:
    for root in (*chosen.region_root, *((chosen.kubelet_root,) if chosen.kubelet_root else ())):
        if not root.is_dir():
            _log.warning("root_missing", root=str(root))
    roots = {Root.KUBELET: [chosen.kubelet_root] if chosen.kubelet_root else [], Root.REGIONS: chosen.region_root}
    return Node(roots, chosen.host_dir, nvml_patience_seconds)


class _Views:
    """Views of the node, whoever reads it."""

    def __init__(self, chosen: PodSettings, node: Node | RemoteNode) -> None:
        self._container_dir = chosen.container_dir
        self._node = node
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
        pods, confirmed = self._pods.pods()
        reading = self._node.read(targets(pods, self._container_dir, by_name=self._by_name))
        view = self._observer.observe(pods, confirmed, reading, self._pods.failures())
        uids = frozenset(pod.metadata.uid for pod in pods)
        self._alerts.tell(alerts.alerts(view.unprotected, pods), uids, time.monotonic())
        return view

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


def _once(chosen: OnceSettings) -> int:
    view = _Views(chosen, _node(chosen, ONCE_PATIENCE_SECONDS)).take_soon(ONCE_PATIENCE_SECONDS)
    sys.stdout.write(metrics.render(metrics.families(view, legacy=chosen.legacy_metrics)).decode())
    return 0


def _serve(chosen: ServeSettings) -> int:
    node: Node | RemoteNode
    if chosen.reader_socket and (chosen.kubelet_root or chosen.region_root or chosen.host_dir):
        raise SettingsError(
            "--kubelet-root, --region-root and --host-dir do nothing with --reader-socket: give them to `read`"
        )
    if chosen.reader_socket is None:
        node = _node(chosen, chosen.update_interval)
    else:
        node = RemoteNode(chosen.reader_socket, max(3 * chosen.update_interval, READER_PATIENCE_SECONDS))
    served = monitor.Monitor(_Views(chosen, node).take, chosen.update_interval, legacy=chosen.legacy_metrics)
    monitor.serve(served, chosen.listen_address, chosen.listen_port)
    return 0


def _read(chosen: ReadSettings) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        link.answer(_node(chosen, chosen.nvml_patience), chosen.reader_socket)
    except (SystemExit, KeyboardInterrupt):
        _log.info("stopped")
    return 0


def _top(chosen: TopSettings) -> int:
    top.run(chosen.url, chosen.interval, once=chosen.once)
    return 0


def _clean(chosen: CleanSettings) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    cleaners = [Cleaner(root, chosen.kubelet_root, chosen.least_age, chosen.budget) for root in chosen.region_root]
    try:
        while True:
            for cleaner in cleaners:
                cleaner.clean()
            if chosen.once or stop.wait(chosen.interval):
                return 0
    finally:
        for cleaner in cleaners:
            cleaner.close()


COMMANDS: list[Command[Any]] = [
    Command("serve", "Serve the metrics of this node's containers over HTTP.", ServeSettings, _serve),
    Command("read", "Read this node's files and GPUs for a server that asks over a socket.", ReadSettings, _read),
    Command("once", "Print the metrics of now and end.", OnceSettings, _once),
    Command("clean", "Remove regions that ended pods left in hostPath volumes.", CleanSettings, _clean),
    Command("top", "Show a live table of a monitor that serves.", TopSettings, _top),
]


def main() -> int:
    """Run the program."""
    return settings.main(
        "isolator-monitor",
        "ISOLATOR_MONITOR_",
        "Metrics of what each container on this node uses of its GPU share.",
        COMMANDS,
    )
