"""The program `isolator-monitor`: its commands and settings."""

import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from isolator_core import names, settings
from isolator_core.settings import Command, PathList, Settings
from isolator_monitor import metrics, monitor
from isolator_monitor.gpus import Nvml
from isolator_monitor.pods_file import PodsFile
from isolator_monitor.readings import read_all
from isolator_monitor.snapshot import Snapshot, snapshot
from isolator_monitor.targets import targets


class SourceSettings(Settings):
    """Where pods and regions are."""

    pods_file: Path = Field(description="a Kubernetes PodList in YAML or JSON; `serve` reads it again when it changes")
    region_root: PathList = Field(
        (), description="directory with regions, ROOT/<pod uid>_<container>/usage.cache; may be repeated"
    )


class ServeSettings(SourceSettings):
    """Settings of `serve`."""

    listen_address: str = Field("0.0.0.0", description="address to listen on")
    listen_port: int = Field(names.MONITOR_PORT, ge=0, le=65535, description="HTTP port; 0 takes a free one")
    update_interval: float = Field(5.0, gt=0, le=3600, description="seconds from one reading to the next")


class _Node:
    """This node, as the settings say to look at it."""

    def __init__(self, chosen: SourceSettings) -> None:
        self._pods = PodsFile(chosen.pods_file)
        self._roots = chosen.region_root
        self._nvml = Nvml()

    def take(self) -> Snapshot:
        pods = self._pods.pods()
        return snapshot(pods, read_all(targets(pods), self._roots), self._nvml.gpus())


def _once(chosen: SourceSettings) -> int:
    sys.stdout.write(metrics.render(_Node(chosen).take()).decode())
    return 0


def _serve(chosen: ServeSettings) -> int:
    node = _Node(chosen)
    monitor.serve(monitor.Monitor(node.take), chosen.listen_address, chosen.listen_port, chosen.update_interval)
    return 0


COMMANDS: list[Command[Any]] = [
    Command("serve", "Serve the metrics of this node's containers over HTTP.", ServeSettings, _serve),
    Command("once", "Print the metrics of now and end.", SourceSettings, _once),
]


def main() -> int:
    """Run the program."""
    return settings.main(
        "isolator-monitor",
        "ISOLATOR_MONITOR_",
        "Metrics of what each container on this node uses of its GPU share.",
        COMMANDS,
    )
