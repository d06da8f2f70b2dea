"""What is known of each sharing container: its pod, its region, its limits and NVML's view of it, put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from isolator_core import requests
from isolator_core.region import Device, Kind, Memory, Region
from isolator_core.requests import Request, RequestRefused
from isolator_monitor import devices, limit_files
from isolator_monitor.gpus import Gpu
from isolator_monitor.limit_files import LimitInvalid
from isolator_monitor.node import NodeReading
from isolator_monitor.pods import Container, Pod
from isolator_monitor.readings import Reading

_log = structlog.get_logger()

MOST_DEVICES = 16
"""As many as a region has room for."""

MOST_BYTES = 1 << 40
"""Above what any card has: what one container counts for at most on a card whose memory is not known."""

UNKNOWN_DEVICE = "device"
"""The region names a GPU that this node does not have, another one than before, or one again."""


@dataclass(frozen=True)
class DeviceState:
    """One GPU of a container. Bytes and counts are None where nothing is known of them."""

    index: int
    uuid: str
    limit: int | None
    """Bytes; 0 = none."""
    total: int | None
    context: int | None = None
    module: int | None = None
    buffer: int | None = None
    sm_percent: int | None = None
    sm_limit_percent: int | None = None
    refusals: int | None = None
    last_refusal: int = 0
    last_refused: int = 0
    throttled_seconds: float | None = None
    nvml_memory: int | None = None
    """Bytes that NVML counts for processes of the container's cgroup."""


@dataclass(frozen=True)
class ContainerState:
    """One container that has a share, or should have."""

    namespace: str
    pod: str
    uid: str
    container: str
    index: str
    devices: tuple[DeviceState, ...]
    request: Request | None
    reading: Reading | None
    region: Region | None
    error: str
    """Why there is no region, or why a device of it is left out; empty if all is well."""
    detail: str
    promised: tuple[int | None, str]
    """Bytes that the limits volume means on the container's card (0 = none, None = not known); why it means none."""
    cards: frozenset[str] = frozenset()
    """UUIDs of the GPUs that NVML shows its processes on. Where NVML shows nobody's, of those that KAI gave it, and the
    node's only one: the label by which KAI's are found is the tenant's to write, as its region is, and a pod can be on
    a node without having its GPU."""
    gpu_pids: frozenset[int] = frozenset()
    """Processes of the container that hold a GPU, by NVML and cgroup."""
    ends_first: bool = False
    """An init container that is no sidecar: it ends before the next container begins."""
    counted: tuple[tuple[str, int], ...] = ()
    """GPU UUID and limit in bytes, as they count against a card, up to its memory: what KAI gave and the limits volume
    promises, where that is known, and what the tenant's region says only where it is not."""


@dataclass
class Identities:
    """GPUs that may stand in a region: those that NVML has named, and without NVML the first that a container named.

    It bounds the series that a tenant can make by writing another UUID each time.
    """

    node: set[str] = field(default_factory=set)
    first: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def learn(self, gpus: Iterable[Gpu], uids: frozenset[str]) -> None:
        """Take in what NVML names, and forget containers whose pods are gone."""
        for gpu in gpus:
            self.node.update((gpu.uuid, *gpu.mig))
        self.first = {key: uuid for key, uuid in self.first.items() if key[0] in uids}

    def accepts(self, uid: str, container: str, index: int, uuid: str) -> bool:
        """Whether a container's device may bear this UUID."""
        if self.node:
            return uuid in self.node
        return self.first.setdefault((uid, container, index), uuid) == uuid


def build(
    pods: Iterable[Pod], node: NodeReading, identities: Identities, reservation_namespace: str
) -> tuple[ContainerState, ...]:
    """State of every container that asked for a share or has a region or a limits volume."""
    pods = tuple({(pod.metadata.namespace, pod.metadata.name): pod for pod in pods if not pod.ended}.values())
    readings = {(reading.uid, reading.container): reading for reading in node.readings}
    identities.learn(node.gpus, frozenset(pod.metadata.uid for pod in pods))
    reserved = devices.reserved(pods, reservation_namespace)
    nvml = _nvml_by_container(pods, node)
    found = []
    for pod in pods:
        asked = _requests(pod)
        given = devices.given(pod, reserved)
        for index, container in pod.containers():
            reading = readings.get((pod.metadata.uid, container.name))
            request = asked.get(index)
            if request is None and (reading is None or not _has_files(reading)):
                continue
            use = nvml.get((pod.metadata.uid, container.name), {})
            try:
                state = _state(pod, index, container, request, reading, given, use, node.gpus, identities)
            except Exception:
                # As in the reader: a fault of ours with what one tenant wrote costs that one alone.
                _log.exception("container_failed", uid=pod.metadata.uid, container=container.name)
                failed = Reading(pod.metadata.uid, container.name, None, (), Kind.INTERNAL, "see the monitor's log")
                state = _state(pod, index, container, request, failed, given, use, node.gpus, identities)
            found.append(state)
    return tuple(found)


def _requests(pod: Pod) -> dict[str, Request]:
    """Requests by index. One that KAI refuses is none: such a pod does not run, or was not KAI's to refuse."""
    try:
        asking = requests.Pod(pod.annotations, pod.spec.init_containers or (), pod.spec.containers)
        return {request.index: request for request in requests.parse(asking)}
    except RequestRefused:
        return {}


def _has_files(reading: Reading) -> bool:
    """Whether something was found on the node, even if it cannot be read."""
    return reading.region is not None or reading.error != Kind.ABSENT or reading.limit_files is not None


_Use = dict[str, tuple[int | None, int | None, frozenset[int]]]
"""Memory, multiprocessor percent and PIDs by GPU UUID."""


def _nvml_by_container(pods: Iterable[Pod], node: NodeReading) -> dict[tuple[str, str], _Use]:
    """What NVML counts for each container, by the cgroups of the processes that it names."""
    ids = {(pod.metadata.uid, key): name for pod in pods for key, name in pod.container_ids().items()}
    found: dict[tuple[str, str], _Use] = {}
    for gpu in node.gpus:
        for process in gpu.processes or ():
            owner = node.owners.get(process.pid)
            name = owner and ids.get((owner.pod_uid, owner.container_id))
            if not owner or not name:
                continue
            use = found.setdefault((owner.pod_uid, name), {})
            memory, busy, pids = use.get(gpu.uuid, (None, None, frozenset()))
            use[gpu.uuid] = (_plus(memory, process.memory), _plus(busy, process.sm_percent), pids | {process.pid})
    return found


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


def _state(
    pod: Pod,
    index: str,
    container: Container,
    request: Request | None,
    reading: Reading | None,
    given: tuple[str, ...],
    use: _Use,
    gpus: tuple[Gpu, ...],
    identities: Identities,
) -> ContainerState:
    region = reading.region if reading else None
    error, detail = (str(reading.error), reading.detail) if reading and reading.error else ("", "")
    cards = {gpu.uuid: gpu.memory_total for gpu in gpus}
    if reading and region and any(device.uuid for device in region.devices):
        states = []
        named: set[str] = set()
        for device in region.devices:
            if not device.uuid:
                continue
            if device.uuid in named:
                # CUDA shows a process no card twice: sums over the container's cards would count what it holds again.
                error, detail = UNKNOWN_DEVICE, f"device {device.index} is {device.uuid} again"
                continue
            named.add(device.uuid)
            if not identities.accepts(pod.metadata.uid, container.name, device.index, device.uuid):
                error, detail = UNKNOWN_DEVICE, f"device {device.index} claims to be {device.uuid}"
                continue
            states.append(_device(region, device, reading.held[device.index], use))
        uuids = tuple(state.uuid for state in states)
    else:
        sole = gpus[0].uuid if len(gpus) == 1 else ""
        count = min(request.devices, MOST_DEVICES) if request else 1
        uuids = tuple(uuid or sole for uuid in given[:MOST_DEVICES] or ("",) * count)
        states = []
    promised = _promised(reading, _card_bytes(uuids, cards))
    if not states and promised[0] is not None:
        empty = 0 if error in ("", Kind.ABSENT, Kind.NOT_READY) else None
        # Counts begin at 0 too: what is first seen at 1 has not increased to Prometheus.
        states = [
            DeviceState(
                position,
                uuid,
                promised[0],
                empty,
                empty,
                empty,
                empty,
                refusals=empty,
                throttled_seconds=empty,
                nvml_memory=use.get(uuid, (None,))[0],
            )
            for position, uuid in enumerate(uuids)
        ]
    known = given if given and all(given) else uuids
    counted = (
        [(state.uuid, state.limit or 0) for state in states]
        if promised[0] is None
        else [(uuid, promised[0]) for uuid in dict.fromkeys(known)]
    )
    return ContainerState(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        uid=pod.metadata.uid,
        container=container.name,
        index=index,
        devices=tuple(states),
        request=request,
        reading=reading,
        region=region,
        error=error,
        detail=detail,
        promised=promised,
        cards=_cards(given, use, gpus),
        gpu_pids=frozenset().union(*(pids for _, _, pids in use.values())),
        # A sidecar stays; the index tells init containers from the others.
        ends_first=index.startswith("i") and container.restart_policy != "Always",
        counted=tuple((uuid, min(limit, cards.get(uuid) or MOST_BYTES)) for uuid, limit in counted),
    )


def _cards(given: tuple[str, ...], use: _Use, gpus: tuple[Gpu, ...]) -> frozenset[str]:
    shown = {gpu.uuid for gpu in gpus if gpu.processes is not None}
    sole = [gpu.uuid for gpu in gpus if len(gpus) == 1]
    return frozenset((*use, *(uuid for uuid in (*given, *sole) if uuid and uuid not in shown)))


def limits_on_cards(states: Iterable[ContainerState]) -> dict[str, int]:
    """Sum in bytes by GPU UUID of what each pod's containers may use at once, by Kubernetes' rule for init containers.

    `states` are in the order in which a pod begins its containers.
    """
    running: dict[tuple[str, str], int] = {}
    most: dict[tuple[str, str], int] = {}
    for state in states:
        for uuid, limit in state.counted:
            key = (state.uid, uuid)
            before = running.get(key, 0)
            most[key] = max(most.get(key, 0), before + limit)
            if not state.ends_first:
                running[key] = before + limit
    limits: dict[str, int] = {}
    for (_, uuid), limit in most.items():
        limits[uuid] = limits.get(uuid, 0) + limit
    return limits


def _device(region: Region, device: Device, held: Memory, use: _Use) -> DeviceState:
    nvml_memory, nvml_busy, _ = use.get(device.uuid, (None, None, frozenset()))
    return DeviceState(
        index=device.index,
        uuid=device.uuid,
        limit=device.limit_bytes,
        total=held.total,
        context=held.context,
        module=held.module,
        buffer=held.buffer,
        # What a slot says is as old as its process's last launch.
        sm_percent=held.sm_percent if nvml_busy is None else nvml_busy,
        sm_limit_percent=device.sm_limit_percent,
        refusals=device.refusals if region.extended else None,
        last_refusal=device.last_refusal,
        last_refused=device.last_refused_bytes,
        throttled_seconds=device.throttled_nanoseconds / 1e9 if region.extended else None,
        nvml_memory=nvml_memory,
    )


def _card_bytes(uuids: tuple[str, ...], cards: Mapping[str, int | None]) -> int | None:
    """Memory of the container's card; where the card is not known, of the node's cards if they are alike."""
    for uuid in uuids:
        if uuid:
            return cards.get(uuid)
    sizes = set(cards.values())
    return sizes.pop() if len(sizes) == 1 else None


def _promised(reading: Reading | None, card_bytes: int | None) -> tuple[int | None, str]:
    if reading is None or reading.limit_files is None:
        return None, reading.limits_error if reading else ""
    try:
        return limit_files.limit_on_card(reading.limit_files, card_bytes), ""
    except LimitInvalid as error:
        return None, str(error)
