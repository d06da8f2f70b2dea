"""`isolator-monitor serve` and `isolator-monitor once`."""

import sys

from isolator_core.errors import SettingsError
from isolator_monitor import metrics, monitor
from isolator_monitor.link import RemoteNode, RemoteSteerer
from isolator_monitor.node import Node
from isolator_monitor.settings import NodeSettings, OnceSettings, ServeSettings
from isolator_monitor.views import Views

ONCE_PATIENCE_SECONDS = 10.0
READER_PATIENCE_SECONDS = 30.0
STEERER_PATIENCE_SECONDS = 2.0


def serve(chosen: ServeSettings) -> int:
    """Serve until SIGTERM."""
    if chosen.reader_socket is None:
        node = _local_node(chosen, chosen.update_interval)
    elif chosen.kubelet_root or chosen.region_root or chosen.host_dir:
        raise SettingsError(
            "--kubelet-root, --region-root and --host-dir do nothing with --reader-socket: give them to `read`"
        )
    else:
        node = RemoteNode(chosen.reader_socket, max(3 * chosen.update_interval, READER_PATIENCE_SECONDS))
    steerer = chosen.steerer_socket and RemoteSteerer(chosen.steerer_socket, STEERER_PATIENCE_SECONDS)
    views = Views(chosen, node, steerer or None)
    served = monitor.Monitor(views.take, chosen.update_interval, legacy=chosen.legacy_metrics)
    monitor.serve(served, chosen.listen_address, chosen.listen_port)
    return 0


def once(chosen: OnceSettings) -> int:
    """Print the metrics of now."""
    view = Views(chosen, _local_node(chosen, ONCE_PATIENCE_SECONDS)).take_soon(ONCE_PATIENCE_SECONDS)
    sys.stdout.write(metrics.render(metrics.families(view, legacy=chosen.legacy_metrics)).decode())
    return 0


def _local_node(chosen: NodeSettings, nvml_patience_seconds: float) -> Node:
    # Only here: with a reader beside it, the server does without NVML's bindings.
    from isolator_monitor.local_node import local_node

    return local_node(chosen, nvml_patience_seconds)
