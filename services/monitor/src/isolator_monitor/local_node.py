"""All that is read on the node for one snapshot. This part sees tenants' bytes; it needs neither network nor API."""

import time
from pathlib import Path

import structlog

from isolator_core import names
from isolator_monitor import cgroups
from isolator_monitor.node import NodeReading
from isolator_monitor.nvml import PatientNvml
from isolator_monitor.readings import Roots, read_all
from isolator_monitor.settings import NodeSettings
from isolator_monitor.targets import Root, Target

_log = structlog.get_logger()


class LocalNode:
    """This node, read by this process."""

    def __init__(self, roots: Roots, host_dir: Path | None, nvml_patience_seconds: float) -> None:
        self._roots = roots
        self._host_dir = host_dir
        self._nvml = PatientNvml(nvml_patience_seconds)

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        """Read the containers' files, the GPUs, and who uses them."""
        started = time.monotonic()
        found = self._nvml.read()
        pids = {process.pid for gpu in found.gpus for process in gpu.processes or ()}
        readings = read_all(targets, self._roots)
        return NodeReading(
            taken=time.time(),
            clock=time.monotonic(),
            seconds=time.monotonic() - started,
            readings=readings,
            gpus=found.gpus,
            nvml_error=found.error,
            nvml_failures=found.failures,
            owners=cgroups.owners(pids),
            host_problem=host_problem(self._host_dir) if self._host_dir else "",
        )


def host_problem(host_dir: Path) -> str:
    """What stands in place of the library's files on the host: a runtime makes a directory where a file is missing."""
    for name in (names.LIBRARY_FILE, names.PRELOAD_FILE):
        path = host_dir / name
        if path.is_dir():
            return f"{path} is a directory"
    return ""


def local_node(chosen: NodeSettings, nvml_patience_seconds: float) -> LocalNode:
    """This node, as the settings say to look at it."""
    kubelet = [chosen.kubelet_root] if chosen.kubelet_root else []
    for root in (*kubelet, *chosen.region_root):
        if not root.is_dir():
            _log.warning("root_missing", root=str(root))
    return LocalNode({Root.KUBELET: kubelet, Root.REGIONS: chosen.region_root}, chosen.host_dir, nvml_patience_seconds)
