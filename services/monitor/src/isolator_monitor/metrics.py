"""Metric families of a view.

The names, labels and meanings of `hami_*` and of the legacy names are those of the monitor of KAI-resource-isolator
(`cmd/monitor`), which are the ones of HAMi: all gauges, with the constant label `zone="vGPU"`. What upstream lacks is
`isolator_*`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from isolator_core.http_server import Answer
from isolator_monitor.containers import ContainerState, DeviceState, limits_on_cards
from isolator_monitor.view import View

ZONE = "vGPU"
_HOST = ("device_index", "device_uuid", "device_type")
_CONTAINER = ("namespace", "pod", "container")
_DEVICE = (*_CONTAINER, "vdevice_index", "device_uuid")

Sample = tuple[Sequence[str], float | int | None]
"""Label values and a value; None gives no series."""


class Families:
    """A registry of families that exist already: what prometheus-client's renderers ask for."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> tuple[Metric, ...]:
        """The families."""
        return self._families


def render(families: Iterable[Metric]) -> bytes:
    """Families in Prometheus' text format."""
    return generate_latest(Families(families))


def render_openmetrics(families: Iterable[Metric]) -> bytes:
    """Families in OpenMetrics' text format, with the line that ends it."""
    return cast(bytes, generate_openmetrics(Families(families)))  # type: ignore[no-untyped-call]


def prefers_openmetrics(accept: str) -> bool:
    """Whether a scraper asks for OpenMetrics."""
    return any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


def plain_answer(body: bytes) -> Answer:
    """The answer to a scraper that takes Prometheus' text format."""
    return 200, CONTENT_TYPE_LATEST, body


def openmetrics_answer(body: bytes) -> Answer:
    """The answer to a scraper that asked for OpenMetrics."""
    return 200, CONTENT_TYPE_OPENMETRICS, body


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A gauge with the samples that have a value."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A counter with the samples that have a value; `name` without `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def families(view: View, *, legacy: bool = False) -> Iterator[Metric]:
    """Every metric of a view; `legacy` adds upstream's names from before HAMi 2.9."""
    yield from _host(view)
    yield from _upstream(view)
    if legacy:
        yield from _legacy(view)
    yield from _own_devices(view)
    yield from _own_containers(view)
    yield from _own_node(view)


def _devices(view: View) -> Iterator[tuple[ContainerState, DeviceState, tuple[str, ...]]]:
    for state in view.containers:
        for device in state.devices:
            labels = (state.namespace, state.pod, state.container, str(device.index), device.uuid)
            yield state, device, labels


def _gpu_labels(view: View) -> Iterator[tuple[tuple[str, ...], int | None, int | None]]:
    for gpu in view.node.gpus:
        yield (str(gpu.index), gpu.uuid, f"NVIDIA-{gpu.name}"), gpu.memory_used, gpu.utilization


def _host(view: View) -> Iterator[Metric]:
    labels = ("zone", *_HOST)
    yield gauge(
        "hami_host_gpu_memory_used_bytes",
        "GPU device memory usage in bytes on the host",
        labels,
        [((ZONE, *gpu), used) for gpu, used, _ in _gpu_labels(view)],
    )
    yield gauge(
        "hami_host_gpu_utilization_ratio",
        "GPU core utilization on the host, 0 to 100",
        labels,
        [((ZONE, *gpu), busy) for gpu, _, busy in _gpu_labels(view)],
    )


def _last_kernel(view: View) -> Iterator[Sample]:
    for state, _, labels in _devices(view):
        if state.region and state.region.last_kernel_time:
            yield labels, max(int(view.node.taken) - state.region.last_kernel_time, 0)


def _upstream(view: View) -> Iterator[Metric]:
    devices = tuple(_devices(view))
    labels = ("zone", *_DEVICE)

    def family(name: str, text: str, samples: Iterable[Sample]) -> Metric:
        return gauge(name, text, labels, [((ZONE, *values), value) for values, value in samples])

    yield family(
        "hami_vgpu_memory_used_bytes",
        "vGPU device memory usage in bytes of a container",
        [(values, device.total) for _, device, values in devices],
    )
    yield family(
        "hami_vgpu_memory_limit_bytes",
        "vGPU device memory limit in bytes of a container, 0 for none",
        [(values, device.limit) for _, device, values in devices],
    )
    yield family(
        "hami_vgpu_memory_context_bytes",
        "vGPU device memory of a container that holds CUDA contexts, in bytes",
        [(values, device.context) for _, device, values in devices],
    )
    yield family(
        "hami_vgpu_memory_module_bytes",
        "vGPU device memory of a container that holds CUDA modules, in bytes",
        [(values, device.module) for _, device, values in devices],
    )
    yield family(
        "hami_vgpu_memory_buffer_bytes",
        "vGPU device memory of a container that holds data, in bytes",
        [(values, device.buffer) for _, device, values in devices],
    )
    yield family(
        "hami_container_device_utilization_ratio",
        "Multiprocessor utilization of a container's processes, 0 to 100 each",
        [(values, device.sm_percent) for _, device, values in devices],
    )
    yield family(
        "hami_container_last_kernel_elapsed_seconds",
        "Seconds since a container launched its last kernel",
        _last_kernel(view),
    )
    yield family(
        "hami_container_device_memory_bytes",
        "vGPU device memory usage in bytes of a container; deprecated, use hami_vgpu_memory_used_bytes",
        [(values, device.total) for _, device, values in devices],
    )


def _legacy(view: View) -> Iterator[Metric]:
    devices = tuple(_devices(view))
    host = ("zone", "deviceidx", "deviceuuid", "devicetype")
    labels = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")

    def family(name: str, text: str, samples: Iterable[Sample]) -> Metric:
        return gauge(name, text, labels, [((ZONE, *values), value) for values, value in samples])

    yield gauge(
        "HostGPUMemoryUsage",
        "GPU device memory usage in bytes on the host",
        host,
        [((ZONE, *gpu), used) for gpu, used, _ in _gpu_labels(view)],
    )
    yield gauge(
        "HostCoreUtilization",
        "GPU core utilization on the host, 0 to 100",
        host,
        [((ZONE, *gpu), busy) for gpu, _, busy in _gpu_labels(view)],
    )
    yield family(
        "vGPU_device_memory_usage_in_bytes",
        "vGPU device memory usage in bytes of a container",
        [(values, device.total) for _, device, values in devices],
    )
    yield family(
        "vGPU_device_memory_limit_in_bytes",
        "vGPU device memory limit in bytes of a container, 0 for none",
        [(values, device.limit) for _, device, values in devices],
    )
    yield family(
        "Device_utilization_desc_of_container",
        "Multiprocessor utilization of a container's processes, 0 to 100 each",
        [(values, device.sm_percent) for _, device, values in devices],
    )
    yield family(
        "Device_last_kernel_of_container", "Seconds since a container launched its last kernel", _last_kernel(view)
    )
    yield gauge(
        "Device_memory_desc_of_container",
        "vGPU device memory usage in bytes of a container, with its parts as labels",
        (*labels, "context", "module", "data", "offset"),
        [
            (
                (ZONE, *values, str(device.context), str(device.module), str(device.buffer), str(_rest(device))),
                device.total,
            )
            for _, device, values in devices
        ],
    )


def _rest(device: DeviceState) -> int:
    """What the total holds beyond its parts."""
    return max((device.total or 0) - (device.context or 0) - (device.module or 0) - (device.buffer or 0), 0)


def _own_devices(view: View) -> Iterator[Metric]:
    devices = tuple(_devices(view))
    yield counter(
        "isolator_container_memory_refusals",
        "Allocations refused because the container's limit would have been exceeded",
        _DEVICE,
        [(values, device.refusals) for _, device, values in devices],
    )
    yield gauge(
        "isolator_container_last_refusal_timestamp_seconds",
        "When memory was last refused to the container",
        _DEVICE,
        [(values, device.last_refusal or None) for _, device, values in devices],
    )
    yield gauge(
        "isolator_container_last_refused_bytes",
        "Bytes that the container asked for when memory was last refused",
        _DEVICE,
        [(values, device.last_refused if device.last_refusal else None) for _, device, values in devices],
    )
    yield counter(
        "isolator_container_throttled_seconds",
        "Time that the container's launches waited for its compute cap, all threads added",
        _DEVICE,
        [(values, device.throttled_seconds) for _, device, values in devices],
    )
    yield gauge(
        "isolator_container_core_limit_ratio",
        "Compute cap of the container, 0 to 1; no series without a cap",
        _DEVICE,
        [
            (values, device.sm_limit_percent / 100 if device.sm_limit_percent in range(1, 100) else None)
            for _, device, values in devices
            if device.sm_limit_percent is not None
        ],
    )
    yield counter(
        "isolator_container_memory_byte_seconds",
        "Memory held, integrated over time, since the monitor started",
        _DEVICE,
        [
            (values, view.memory_seconds.get((state.uid, state.container, device.index)))
            for state, device, values in devices
        ],
    )
    yield gauge(
        "isolator_container_nvml_memory_used_bytes",
        "GPU memory that NVML counts for the container's processes",
        _DEVICE,
        [(values, device.nvml_memory) for _, device, values in devices],
    )


def _own_containers(view: View) -> Iterator[Metric]:
    states = [(state, (state.namespace, state.pod, state.container)) for state in view.containers]
    yield gauge(
        "isolator_container_processes",
        "Living processes of the container that are attached to its region",
        _CONTAINER,
        [(values, len(state.region.processes) if state.region else None) for state, values in states],
    )
    yield gauge(
        "isolator_container_oldest_process_timestamp_seconds",
        "When the oldest living process of the container attached to its region",
        _CONTAINER,
        [
            (values, min((process.attached for process in state.region.processes if process.attached), default=None))
            for state, values in states
            if state.region
        ],
    )
    yield gauge(
        "isolator_container_region_error",
        "1 for a container whose region cannot be read, or only in part, by kind",
        (*_CONTAINER, "kind"),
        [((*values, state.error), 1) for state, values in states if state.error not in ("", "absent")],
    )
    yield gauge(
        "isolator_container_unprotected",
        "1 for a container that has a share and is not held to it, by reason",
        (*_CONTAINER, "reason"),
        [((found.namespace, found.pod, found.container, found.reason), 1) for found in view.unprotected],
    )


def _own_node(view: View) -> Iterator[Metric]:
    limits = limits_on_cards(view.containers)
    gpus = [((str(gpu.index), gpu.uuid, f"NVIDIA-{gpu.name}"), gpu) for gpu in view.node.gpus]
    yield gauge(
        "isolator_gpu_memory_total_bytes",
        "Memory of the GPU",
        _HOST,
        [(values, gpu.memory_total) for values, gpu in gpus],
    )
    yield gauge(
        "isolator_gpu_limits_bytes",
        "What the limits let the containers on the GPU use at once, which KAI lets exceed its memory",
        _HOST,
        [(values, limits.get(gpu.uuid, 0)) for values, gpu in gpus],
    )
    yield gauge("isolator_nvml_up", "Whether NVML answers on this node", (), [((), int(not view.node.nvml_error))])
    failures = (key.partition(": ") for key in view.node.nvml_failures)
    yield counter(
        "isolator_nvml_failures",
        "NVML calls that failed since the reader started",
        ("call", "error"),
        [((call, error), view.node.nvml_failures[f"{call}: {error}"]) for call, _, error in failures],
    )
    yield counter(
        "isolator_region_errors",
        "Regions that could not be read, or only in part, by kind; one a reading",
        ("kind",),
        [((kind,), count) for kind, count in sorted(view.region_errors.items())],
    )
    yield gauge(
        "isolator_unprotected_containers",
        "Containers on this node that have a share and are not held to it",
        (),
        [((), len({(found.uid, found.container) for found in view.unprotected}))],
    )
    if view.steered:
        report = view.steering
        yield gauge(
            "isolator_monitor_steering",
            "Whether the part answers that tells containers their PIDs on the node and who comes first",
            (),
            [((), int(report is not None))],
        )
        yield gauge(
            "isolator_monitor_steered_processes",
            "Processes that know their PID on the node from it",
            (),
            [((), report.told if report else None)],
        )
        yield gauge(
            "isolator_monitor_steered_to_give_way",
            "Containers that give way to one of priority 0 on their GPU",
            (),
            [((), report.giving_way if report else None)],
        )
        yield counter(
            "isolator_monitor_steering_failures",
            "Regions that could not be opened or written for that, by kind",
            ("kind",),
            [((kind,), count) for kind, count in sorted(report.failures.items())] if report else [],
        )
    yield gauge("isolator_monitor_pods", "Pods on this node that have not ended", (), [((), view.pods)])
    yield gauge(
        "isolator_monitor_pods_confirmed_timestamp_seconds",
        "When the list of pods was last known to be right",
        (),
        [((), view.pods_confirmed)],
    )
    yield counter(
        "isolator_monitor_pods_failures",
        "Failures to list or watch this node's pods, by reason",
        ("reason",),
        [((reason,), count) for reason, count in sorted(view.pods_failures.items())],
    )
    yield gauge(
        "isolator_monitor_snapshot_timestamp_seconds", "When the node was last read", (), [((), view.node.taken)]
    )
    yield gauge(
        "isolator_monitor_snapshot_duration_seconds", "How long the last reading took", (), [((), view.node.seconds)]
    )


def freshness(age_seconds: float, *, stale: bool) -> Iterator[Metric]:
    """What is true only at the moment of a scrape."""
    yield gauge(
        "isolator_monitor_snapshot_age_seconds", "Age of what this scrape shows", (), [((), round(age_seconds, 3))]
    )
    yield gauge(
        "isolator_monitor_snapshot_stale",
        "1 if what this scrape shows is older than three update intervals and ten seconds",
        (),
        [((), int(stale))],
    )
