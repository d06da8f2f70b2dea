"""From what was read of the node to what the metrics say: pods, regions, limits and NVML put together."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from isolator_core.region import Device, Kind, Memory, Process, Region
from isolator_monitor import metrics, readings
from isolator_monitor.cgroups import Owner
from isolator_monitor.gpus import Gpu, GpuProcess
from isolator_monitor.limit_files import LimitFiles
from isolator_monitor.node import NodeReading
from isolator_monitor.pods import Pod, parse_pods
from isolator_monitor.readings import Reading
from isolator_monitor.view import Observer, View

MIB = 1 << 20
UID = "5e2f7a2c-9f4a-4b53-8d5c-2f1f3b9a7e10"
CONTAINER_ID = "ab" * 32
UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
CARD = Gpu(0, UUID, "Tesla T4", 15360 * MIB, 5000 * MIB, 40, ())
MOUNTS = [
    {"name": "kai-resource-isolator-lib", "mountPath": "/usr/local/vgpu/libvgpu.so"},
    {"name": "kai-resource-isolator-preload", "mountPath": "/etc/ld.so.preload"},
]
FILES = LimitFiles("container=main\nmemory=4096m\n", "4147m")
LIMIT = 4147 * MIB


def pod(**changes: Any) -> dict[str, Any]:
    made = {
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": UID,
            "annotations": {"gpu-memory": "4096"},
            "labels": {"runai-gpu-group": "g"},
        },
        "spec": {"containers": [{"name": "main", "volumeMounts": MOUNTS}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{CONTAINER_ID}"}],
        },
    }
    return made | changes


RESERVATION = {
    "metadata": {
        "name": "r",
        "namespace": "kai-resource-reservation",
        "uid": "r",
        "labels": {"runai-gpu-group": "g"},
        "annotations": {"run.ai/reserve_for_gpu_index": OTHER},
    },
    "spec": {"containers": [{"name": "r"}]},
}


def region(limit: int = LIMIT, uuid: str = UUID, **changes: Any) -> Region:
    made = Region(
        layout="1.2",
        extended=True,
        managed=True,
        liveness=True,
        inode=1,
        created=1000,
        devices=(Device(0, uuid, limit, 30, 3, 1100, 2048 * MIB, 1_500_000_000),),
        processes=(
            Process(0, 7, 70, "python3", 1050, (Memory(100, 20, 3, 130, 0),)),
            Process(4, 8, 80, "python3", 1040, (Memory(0, 0, 1000, 1000, 0),)),
        ),
        last_kernel_time=1190,
    )
    return msgspec.structs.replace(made, **changes)


def reading(found: Region | None, error: Kind | None = None, files: LimitFiles | None = FILES) -> Reading:
    held = readings.held(found) if found else ()
    return Reading(UID, "main", found, held, error, "why" if error else "", files)


def node(*found: Reading, gpus: tuple[Gpu, ...] = (CARD,), taken: float = 1200.0, **changes: Any) -> NodeReading:
    owners = {process.pid: Owner(UID, CONTAINER_ID) for gpu in gpus for process in gpu.processes or ()}
    made = NodeReading(taken, taken, 0.25, found, gpus, "", {}, owners, "")
    return msgspec.structs.replace(made, **changes)


def parse(*items: dict[str, Any]) -> tuple[Pod, ...]:
    return parse_pods(json.dumps({"kind": "List", "items": list(items)}).encode(), "pods")


def observer() -> Observer:
    return Observer("/usr/local/vgpu", "kai-resource-reservation")


def observe(found: NodeReading, *items: dict[str, Any]) -> View:
    return observer().observe(parse(*(items or (pod(),))), 1199.0, found)


def series(view: View, *, legacy: bool = False) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels, from both formats, which must agree."""
    families = tuple(metrics.families(view, legacy=legacy))
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(metrics.render(families).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    again: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse_openmetrics(metrics.render_openmetrics(families).decode()):
        for sample in family.samples:
            again.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    assert again == found
    return found


def only(values: dict[tuple[tuple[str, str], ...], float]) -> float:
    (value,) = values.values()
    return value


DEVICE_LABELS = (
    ("container", "main"),
    ("device_uuid", UUID),
    ("namespace", "team"),
    ("pod", "a"),
    ("vdevice_index", "0"),
)


def test_upstreams_metrics() -> None:
    found = series(observe(node(reading(region()))))
    labels = tuple(sorted((*DEVICE_LABELS, ("zone", "vGPU"))))
    host = (("device_index", "0"), ("device_type", "NVIDIA-Tesla T4"), ("device_uuid", UUID), ("zone", "vGPU"))
    assert {name: values for name, values in found.items() if name.startswith("hami_")} == {
        "hami_host_gpu_memory_used_bytes": {host: 5000 * MIB},
        "hami_host_gpu_utilization_ratio": {host: 40},
        "hami_vgpu_memory_used_bytes": {labels: 1130},
        "hami_vgpu_memory_limit_bytes": {labels: LIMIT},
        "hami_vgpu_memory_context_bytes": {labels: 100},
        "hami_vgpu_memory_module_bytes": {labels: 20},
        "hami_vgpu_memory_buffer_bytes": {labels: 1003},
        "hami_container_device_utilization_ratio": {labels: 0},
        "hami_container_last_kernel_elapsed_seconds": {labels: 10},
        "hami_container_device_memory_bytes": {labels: 1130},
    }


def test_legacy_names_by_a_flag() -> None:
    found = series(observe(node(reading(region()))), legacy=True)
    host = (("deviceidx", "0"), ("devicetype", "NVIDIA-Tesla T4"), ("deviceuuid", UUID), ("zone", "vGPU"))
    labels = (
        ("ctrname", "main"),
        ("deviceuuid", UUID),
        ("podname", "a"),
        ("podnamespace", "team"),
        ("vdeviceid", "0"),
        ("zone", "vGPU"),
    )
    parts = (("context", "100"), ("data", "1003"), ("module", "20"), ("offset", "7"))
    assert found["HostGPUMemoryUsage"] == {host: 5000 * MIB}
    assert found["HostCoreUtilization"] == {host: 40}
    assert found["vGPU_device_memory_usage_in_bytes"] == {labels: 1130}
    assert found["vGPU_device_memory_limit_in_bytes"] == {labels: LIMIT}
    assert found["Device_utilization_desc_of_container"] == {labels: 0}
    assert found["Device_last_kernel_of_container"] == {labels: 10}
    assert found["Device_memory_desc_of_container"] == {tuple(sorted((*labels, *parts))): 1130}
    assert "HostGPUMemoryUsage" not in series(observe(node(reading(region()))))


def test_own_metrics() -> None:
    found = series(observe(node(reading(region()))))
    of_container = (("container", "main"), ("namespace", "team"), ("pod", "a"))
    gpu = (("device_index", "0"), ("device_type", "NVIDIA-Tesla T4"), ("device_uuid", UUID))
    assert found["isolator_container_memory_refusals_total"] == {DEVICE_LABELS: 3}
    assert found["isolator_container_last_refusal_timestamp_seconds"] == {DEVICE_LABELS: 1100}
    assert found["isolator_container_last_refused_bytes"] == {DEVICE_LABELS: 2048 * MIB}
    assert found["isolator_container_throttled_seconds_total"] == {DEVICE_LABELS: 1.5}
    assert found["isolator_container_core_limit_ratio"] == {DEVICE_LABELS: 0.3}
    assert found["isolator_container_processes"] == {of_container: 2}
    assert found["isolator_container_oldest_process_timestamp_seconds"] == {of_container: 1040}
    assert found["isolator_gpu_memory_total_bytes"] == {gpu: 15360 * MIB}
    assert found["isolator_gpu_limits_bytes"] == {gpu: LIMIT}
    assert found["isolator_nvml_up"] == {(): 1}
    assert found["isolator_monitor_pods"] == {(): 1}
    assert found["isolator_monitor_pods_confirmed_timestamp_seconds"] == {(): 1199}
    assert found["isolator_monitor_snapshot_timestamp_seconds"] == {(): 1200}
    assert found["isolator_monitor_snapshot_duration_seconds"] == {(): 0.25}
    assert found["isolator_unprotected_containers"] == {(): 0}


def test_memory_held_adds_up_over_time() -> None:
    watching = observer()
    for taken in (1000.0, 1002.0, 1005.0):
        view = watching.observe(parse(pod()), taken, node(reading(region()), taken=taken))
    assert series(view)["isolator_container_memory_byte_seconds_total"] == {DEVICE_LABELS: 1130 * 5}
    watching.observe((), 1006.0, node(taken=1006.0))
    # Nothing is charged for the hour in which the node was not read: the pod came in it, nobody knows when.
    for taken, expected in ((4606.0, 0), (4607.0, 1130)):
        view = watching.observe(parse(pod()), taken, node(reading(region()), taken=taken))
        assert series(view)["isolator_container_memory_byte_seconds_total"] == {DEVICE_LABELS: expected}


def test_a_clock_that_is_set_charges_nobody() -> None:
    watching = observer()
    for taken, clock in ((1000.0, 10.0), (90000.0, 12.0), (500.0, 15.0)):
        view = watching.observe(parse(pod()), taken, node(reading(region()), taken=taken, clock=clock))
    assert series(view)["isolator_container_memory_byte_seconds_total"] == {DEVICE_LABELS: 1130 * 5}


def test_a_region_of_hami_core_has_no_refusals_to_show() -> None:
    found = series(observe(node(reading(region(extended=False, last_kernel_time=0)))))
    assert "isolator_container_memory_refusals_total" not in found
    assert "hami_container_last_kernel_elapsed_seconds" not in found
    assert found["hami_vgpu_memory_used_bytes"]


def test_a_pod_has_series_before_its_first_cuda_call() -> None:
    """The limit is its own volume's, the card the one that KAI reserved, with a fallback to the node's only card."""
    found = series(observe(node(reading(None, Kind.ABSENT))))
    labels = tuple(sorted((*DEVICE_LABELS, ("zone", "vGPU"))))
    assert found["hami_vgpu_memory_used_bytes"] == {labels: 0}
    assert found["hami_vgpu_memory_limit_bytes"] == {labels: LIMIT}
    # Else the first refusal would be no increase.
    assert found["isolator_container_memory_refusals_total"] == {DEVICE_LABELS: 0}
    assert found["isolator_container_throttled_seconds_total"] == {DEVICE_LABELS: 0}
    cards = (CARD, msgspec.structs.replace(CARD, index=1, uuid=OTHER))
    found = series(observe(node(reading(None, Kind.ABSENT), gpus=cards), pod(), RESERVATION))
    ((labels, value),) = found["hami_vgpu_memory_limit_bytes"].items()
    assert (dict(labels)["device_uuid"], value) == (OTHER, LIMIT)
    found = series(observe(node(reading(None, Kind.ABSENT), gpus=cards)))
    ((labels, value),) = found["hami_vgpu_memory_limit_bytes"].items()
    assert (dict(labels)["device_uuid"], value) == ("", LIMIT)


def test_a_reservation_in_a_tenants_namespace_tells_nothing() -> None:
    fake = RESERVATION | {"metadata": RESERVATION["metadata"] | {"namespace": "team"}}  # type: ignore[operator]
    cards = (CARD, msgspec.structs.replace(CARD, index=1, uuid=OTHER))
    found = series(observe(node(reading(None, Kind.ABSENT), gpus=cards), pod(), fake))
    assert OTHER not in str(found["hami_vgpu_memory_limit_bytes"])


def test_a_region_that_cannot_be_read_shows_no_usage() -> None:
    found = series(observe(node(reading(None, Kind.COUNT))))
    assert "hami_vgpu_memory_used_bytes" not in found
    assert only(found["hami_vgpu_memory_limit_bytes"]) == LIMIT
    ((labels, value),) = found["isolator_container_region_error"].items()
    assert (dict(labels)["kind"], value) == ("count", 1)
    assert found["isolator_region_errors_total"] == {(("kind", "count"),): 1}


def test_a_fault_of_ours_with_one_container_costs_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit_on_card(files: LimitFiles, _card_bytes: int | None) -> int:
        if files.request == "x":
            raise ValueError
        return LIMIT

    monkeypatch.setattr("isolator_monitor.limit_files.limit_on_card", limit_on_card)
    other = pod(metadata=pod()["metadata"] | {"uid": "v", "name": "b"})
    found = (reading(region(), files=LimitFiles("x", None)), msgspec.structs.replace(reading(region()), uid="v"))
    shown = series(observe(node(*found), pod(), other))
    assert [dict(labels)["pod"] for labels in shown["hami_vgpu_memory_used_bytes"]] == ["b"]
    ((labels, _),) = shown["isolator_container_region_error"].items()
    assert (dict(labels)["pod"], dict(labels)["kind"]) == ("a", "internal")


def test_an_ended_pod_has_no_series() -> None:
    assert "hami_vgpu_memory_used_bytes" not in series(
        observe(node(reading(region())), pod(status={"phase": "Succeeded"}))
    )


def test_a_tenant_cannot_make_series_by_naming_gpus() -> None:
    made_up = region(uuid="GPU-made-up")
    found = series(observe(node(reading(made_up))))
    assert "GPU-made-up" not in str(found)
    assert found["isolator_region_errors_total"] == {(("kind", "device"),): 1}
    watching = observer()
    for uuid in ("GPU-1", "GPU-2", "GPU-3"):
        view = watching.observe(parse(pod()), 0.0, node(reading(region(uuid=uuid)), gpus=()))
    assert "GPU-3" not in str(series(view))
    view = watching.observe(parse(pod()), 0.0, node(reading(region(uuid="GPU-1")), gpus=()))
    assert only(series(view)["hami_vgpu_memory_used_bytes"]) == 1130


def test_a_card_that_a_region_names_again_counts_once() -> None:
    """CUDA shows a process no card twice: sums over a container's cards would be too large, by the tenant's hand."""
    device = region().devices[0]
    twice = region(
        devices=(device, msgspec.structs.replace(device, index=1)),
        processes=(Process(0, 7, 70, "python3", 1050, (Memory(0, 0, 0, 130, 0), Memory(0, 0, 0, 130, 0))),),
    )
    found = series(observe(node(reading(twice, files=None))))
    labels = tuple(sorted((*DEVICE_LABELS, ("zone", "vGPU"))))
    assert found["hami_vgpu_memory_used_bytes"] == {labels: 130}
    assert only(found["isolator_gpu_limits_bytes"]) == LIMIT
    assert found["isolator_region_errors_total"] == {(("kind", "device"),): 1}


def test_limits_on_a_card_are_those_that_were_promised() -> None:
    """A tenant writes its region: neither the limit nor the card in it count against others."""
    cards = (CARD, msgspec.structs.replace(CARD, index=1, uuid=OTHER))

    def sums(found: Region, files: LimitFiles | None = FILES) -> list[float]:
        view = observe(node(reading(found, files=files), gpus=cards), pod(), RESERVATION)
        return list(series(view)["isolator_gpu_limits_bytes"].values())

    assert sums(region(uuid=OTHER)) == [0, LIMIT]
    assert sums(region(limit=1 << 50, uuid=UUID)) == [0, LIMIT]
    assert sums(region(limit=1 << 50, uuid=UUID), files=None) == [15360 * MIB, 0]
    # A pod that KAI has not placed can ask for any amount.
    assert sums(region(), files=LimitFiles("container=main\nmemory=17592186044415m\n", None)) == [0, 15360 * MIB]


def test_limits_on_a_card_are_what_a_pods_containers_can_use_at_once() -> None:
    """By Kubernetes' rule: init containers one after another, beside the sidecars begun before, then all else."""

    def total(names: dict[str, int]) -> float:
        def container(name: str) -> dict[str, str]:
            return {"name": name} | ({"restartPolicy": "Always"} if name.startswith("sidecar") else {})

        main = [container(name) for name in names if name.startswith("main")]
        first = [container(name) for name in names if not name.startswith("main")]
        found = [
            Reading(UID, name, None, (), Kind.ABSENT, "", LimitFiles(f"container={name}\nmemory={mib}m\n", f"{mib}m"))
            for name, mib in names.items()
        ]
        view = observe(node(*found), pod(spec={"initContainers": first, "containers": main}))
        return only(series(view)["isolator_gpu_limits_bytes"]) / MIB

    assert total({"init": 3000, "main": 4000}) == 4000
    assert total({"init": 9000, "then": 8000, "main": 4000, "main-2": 1000}) == 9000
    assert total({"init": 3000, "main": 4000, "main-2": 1000}) == 5000
    assert total({"sidecar": 2000, "init": 3000, "main": 4000}) == 6000
    assert total({"sidecar": 2000, "init": 5000, "sidecar-2": 500, "main": 4000}) == 7000
    assert total({"init": 5000, "sidecar": 2000, "main": 4000}) == 6000


def test_a_container_has_the_cards_that_nvml_shows_it_on_where_nvml_shows_who_is() -> None:
    """Whoever may edit a pod may write KAI's label on it, and a pod without a GPU can be on a node with one."""

    def cards(*gpus: Gpu) -> frozenset[str]:
        (state,) = observe(node(reading(region()), gpus=gpus), pod(), RESERVATION).containers
        return state.cards

    silent = msgspec.structs.replace(CARD, processes=None)
    used = msgspec.structs.replace(CARD, processes=(GpuProcess(70, 500),))
    other = msgspec.structs.replace(CARD, index=1, uuid=OTHER)
    silent_other = msgspec.structs.replace(silent, index=1, uuid=OTHER)
    assert cards(CARD, other) == frozenset()
    assert UUID not in cards(CARD)
    assert cards(used, other) == {UUID}
    assert cards(used, silent_other) == {UUID, OTHER}
    assert cards(silent) == {UUID, OTHER}
    assert cards() == {OTHER}


def test_mig_devices_of_the_node_are_known() -> None:
    card = msgspec.structs.replace(CARD, mig=("MIG-1",))
    assert only(series(observe(node(reading(region(uuid="MIG-1")), gpus=(card,))))["hami_vgpu_memory_used_bytes"])


def test_one_name_has_one_series() -> None:
    again = pod(metadata=pod()["metadata"] | {"uid": "another"})
    ended = pod(metadata=pod()["metadata"] | {"uid": "third"}, status={"phase": "Failed"})
    view = observe(node(reading(region())), again, pod(), ended)
    assert only(series(view)["hami_vgpu_memory_used_bytes"]) == 1130


def test_nvml_that_gives_nothing_costs_its_series_only() -> None:
    card = Gpu(0, UUID, "GB10", None, None, None, None)
    found = series(
        observe(node(reading(region()), gpus=(card,), nvml_failures={"nvmlDeviceGetName: Unknown Error": 2}))
    )
    assert "hami_host_gpu_memory_used_bytes" not in found
    assert "isolator_gpu_memory_total_bytes" not in found
    assert only(found["hami_vgpu_memory_used_bytes"]) == 1130
    assert found["isolator_nvml_failures_total"] == {(("call", "nvmlDeviceGetName"), ("error", "Unknown Error")): 2}
    found = series(observe(node(reading(region()), gpus=(), nvml_error="Driver Not Loaded")))
    assert found["isolator_nvml_up"] == {(): 0}
    assert only(found["hami_vgpu_memory_limit_bytes"]) == LIMIT


def test_nvmls_processes_are_joined_by_their_cgroup() -> None:
    card = msgspec.structs.replace(CARD, processes=(GpuProcess(70, 500, 20), GpuProcess(80, 700, 5)))
    found = series(observe(node(reading(region()), gpus=(card,))))
    assert found["isolator_container_nvml_memory_used_bytes"] == {DEVICE_LABELS: 1200}
    assert only(found["hami_container_device_utilization_ratio"]) == 25


def test_a_slot_says_how_busy_it_was_only_where_nvml_does_not() -> None:
    """What stands in a slot is as old as its process's last launch."""
    stale = reading(region(processes=(Process(0, 7, 70, "python3", 1050, (Memory(0, 0, 0, 0, 77),)),)))
    for percent, shown in ((0, 0), (20, 20), (None, 77)):
        card = msgspec.structs.replace(CARD, processes=(GpuProcess(70, 500, percent),))
        found = series(observe(node(stale, gpus=(card,))))
        assert only(found["hami_container_device_utilization_ratio"]) == shown


def unprotected(view: View) -> dict[str, str]:
    shown = series(view).get("isolator_container_unprotected", {})
    assert {dict(labels)["reason"] for labels in shown} == {str(found.reason) for found in view.unprotected}
    return {str(found.reason): found.text for found in view.unprotected}


BUSY = (msgspec.structs.replace(CARD, processes=(GpuProcess(70, 500), GpuProcess(99, 700))),)
BARE = pod(spec={"containers": [{"name": "main"}]})


@pytest.mark.parametrize(
    ("view", "reasons"),
    [
        (lambda: observe(node(reading(region()))), {}),
        (lambda: observe(node(reading(None, Kind.ABSENT))), {}),
        (lambda: observe(node(), BARE), {"no_mounts": "/usr/local/vgpu/libvgpu.so and /etc/ld.so.preload"}),
        (
            lambda: observe(node(reading(region()), host_problem="/x/libvgpu.so is a directory")),
            {"not_a_file": "is a directory"},
        ),
        (lambda: observe(node(reading(None, Kind.ABSENT, LimitFiles(None, None)))), {"no_limit": "request is missing"}),
        (lambda: observe(node(reading(region(0), files=None))), {"no_limit": "no limit is in force"}),
        (lambda: observe(node(reading(region(0), files=LimitFiles("container=main\nmemory=none\n", None)))), {}),
        (lambda: observe(node(reading(None, Kind.ABSENT), gpus=BUSY)), {"no_region": "processes 70, 99"}),
        (lambda: observe(node(reading(region()), gpus=BUSY)), {"no_region": "processes 99"}),
        (lambda: observe(node(reading(region(LIMIT + 1)))), {"limit_above_share": "were promised"}),
        (lambda: observe(node(reading(region(LIMIT - 1)))), {}),
        # Not started yet: nothing to protect.
        (lambda: observe(node(), BARE | {"status": {"phase": "Pending"}}), {}),
    ],
)
def test_unprotected_containers_are_named_by_reason(view: Callable[[], View], reasons: dict[str, str]) -> None:
    found = unprotected(view())
    assert set(found) == set(reasons)
    for reason, words in reasons.items():
        assert words in found[reason]


def test_a_pod_of_upstreams_chart_is_protected_by_the_directory_it_mounts() -> None:
    mounts = [
        {"name": "vgpu", "mountPath": "/usr/local/vgpu"},
        {"name": "vgpu", "mountPath": "/etc/ld.so.preload", "subPath": "ld.so.preload"},
    ]
    upstream = pod(spec={"containers": [{"name": "main", "volumeMounts": mounts}]})
    view = observe(node(reading(region(extended=False, liveness=False), files=None)), upstream)
    assert unprotected(view) == {}
    assert only(series(view)["hami_vgpu_memory_used_bytes"]) == 1130
