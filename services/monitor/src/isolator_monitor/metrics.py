"""Metric families of a snapshot.

The names, labels and meanings of `hami_*` are those of the monitor of KAI-resource-isolator (`cmd/monitor`), which are
the ones of HAMi: all are gauges with the constant label `zone="vGPU"`.
"""

from collections.abc import Iterator
from typing import cast

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from isolator_core.region import Device, Region
from isolator_monitor.snapshot import Snapshot

ZONE = "vGPU"
_HOST_LABELS = ("zone", "device_index", "device_uuid", "device_type")
_CONTAINER_LABELS = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")


class Families:
    """A registry of families that exist already: what prometheus-client's renderers ask for."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> tuple[Metric, ...]:
        """The families."""
        return self._families


def render(snapshot: Snapshot) -> bytes:
    """The snapshot in Prometheus' text format."""
    return generate_latest(Families(families(snapshot)))


def render_openmetrics(snapshot: Snapshot) -> bytes:
    """The snapshot in OpenMetrics' text format."""
    return cast(bytes, generate_openmetrics(Families(families(snapshot))))  # type: ignore[no-untyped-call]


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every metric of a snapshot."""
    yield from _host(snapshot)
    yield from _containers(snapshot)


def _host(snapshot: Snapshot) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "hami_host_gpu_memory_used_bytes", "GPU device memory usage in bytes on the host", labels=_HOST_LABELS
    )
    utilization = GaugeMetricFamily(
        "hami_host_gpu_utilization_ratio", "GPU core utilization on the host, 0 to 100", labels=_HOST_LABELS
    )
    for gpu in snapshot.gpus:
        labels = (ZONE, str(gpu.index), gpu.uuid, f"NVIDIA-{gpu.name}")
        if gpu.memory_used is not None:
            used.add_metric(labels, gpu.memory_used)
        if gpu.utilization is not None:
            utilization.add_metric(labels, gpu.utilization)
    yield from (used, utilization)


def _containers(snapshot: Snapshot) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes of a container", labels=_CONTAINER_LABELS
    )
    limit = GaugeMetricFamily(
        "hami_vgpu_memory_limit_bytes",
        "vGPU device memory limit in bytes of a container, 0 for none",
        labels=_CONTAINER_LABELS,
    )
    for labels, region, device in devices(snapshot):
        used.add_metric(labels, used_bytes(region, device))
        limit.add_metric(labels, device.limit_bytes)
    yield from (used, limit)


def devices(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Region, Device]]:
    """Every device of every region that was read, with its labels. A device that has no UUID yet has no series."""
    for reading in snapshot.readings:
        pod = snapshot.pods[reading.target.uid].metadata
        if reading.region is None:
            continue
        for device in reading.region.devices:
            if device.uuid:
                where = (pod.namespace, pod.name, reading.target.container, str(device.index), device.uuid)
                yield (ZONE, *where), reading.region, device


def used_bytes(region: Region, device: Device) -> int:
    """Bytes that the container's living processes hold on a device."""
    return sum(process.memory[device.index].total for process in region.processes)
