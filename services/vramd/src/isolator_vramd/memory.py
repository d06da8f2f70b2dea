"""MiB of memory of one physical GPU of a node, from what the node says of itself. One function a rule.

A node that has a GPU but gives no valid figure has an unknown memory, with a reason: it is told, and nothing is guessed
for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from isolator_core.go_numbers import MOST_INT64, parse_quantity, parse_uint

MEMORY_LABEL = "nvidia.com/gpu.memory"
PRODUCT_LABEL = "nvidia.com/gpu.product"
PRESENT_LABEL = "nvidia.com/gpu.present"
COUNT_LABEL = "nvidia.com/gpu.count"
MIG_STRATEGY_LABEL = "nvidia.com/mig.strategy"
MIG_ENABLED_LABEL = "node-role.kubernetes.io/mig-enabled"
HAMI_ANNOTATION = "hami.io/node-nvidia-register"
GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"

BYTES_FROM = 1_048_576
GO_TRUE = ("1", "t", "T", "true", "TRUE", "True")
"""What Go's `strconv.ParseBool` takes for true."""
UNIFIED_PRODUCTS = ("GB10", "Thor", "Orin", "Xavier", "Tegra")

Origin = Literal["label", "hami", "unified"]


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of the node's smallest GPU, at least 1, and where the figure comes from."""

    mib: int
    origin: Origin = "label"


@dataclass(frozen=True, slots=True)
class NoMemory:
    """A GPU node that gives no valid figure, and why, for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoShare:
    """A GPU node that takes no shares and so does not count, and why, for people."""

    reason: str


NodeMemory = Memory | NoMemory | NoShare


@dataclass(frozen=True)
class NodeFacts:
    """What a node says that has to do with its GPUs. Quantities are as the API serves them."""

    labels: Mapping[str, str]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    hami_register: str = ""


def has_gpu(facts: NodeFacts) -> bool:
    """Whether a node has an NVIDIA GPU.

    GPU feature discovery's labels (k8s-device-plugin `internal/lm/resource.go`), the GPU operator's
    `nvidia.com/gpu.present`, a device plugin's resource or HAMi's registration say so.
    """
    return (
        MEMORY_LABEL in facts.labels
        or facts.labels.get(PRESENT_LABEL) == "true"
        or facts.labels.get(COUNT_LABEL, "0") != "0"
        or facts.capacity.get(GPU_RESOURCE, "0") != "0"
        or _mig_resources(facts.capacity)
        or facts.hami_register != ""
    )


def _mig_resources(quantities: Mapping[str, str]) -> bool:
    return any(name.startswith(MIG_RESOURCE_PREFIX) and value != "0" for name, value in quantities.items())


def refuses_shares(facts: NodeFacts) -> NoShare | None:
    """Nodes that are cut by MIG take no shares, so they do not count; None for all others.

    Source: KAI `pkg/scheduler/api/node_info/node_info.go`: IsMIGEnabled (the label if present, by KAI's default key,
    else an allocatable `nvidia.com/mig-…`) and PredicateByNodeResourcesType: strategy `single` takes whole GPUs only,
    `mixed` MIG devices only. A node with strategy `single` that KAI does not see as MIG-enabled takes shares of its
    slices, and its label gives the memory of a slice: it counts like any other.
    """
    enabled = facts.labels.get(MIG_ENABLED_LABEL)
    cut = _mig_resources(facts.allocatable) if enabled is None else enabled in GO_TRUE
    strategy = facts.labels.get(MIG_STRATEGY_LABEL, "")
    if cut and strategy in ("single", "mixed"):
        return NoShare(f"MIG is enabled with strategy {strategy}: KAI places no shares there")
    return None


def memory_from_label(value: str | None) -> Memory | NoMemory:
    """The label `nvidia.com/gpu.memory`: MiB, or bytes from 1,048,576 up.

    Source: KAI `pkg/scheduler/api/node_info/node_info.go` getNodeGpuMemory, a work-around for a GPU feature discovery
    that wrote bytes. KAI floors to a multiple of 100 for its portion; the limit comes from the unfloored label
    (`pkg/binder/plugins/hamicore/hami_core.go`), and so does the basis. Replicas of time-slicing
    (`nvidia.com/gpu.replicas`, product `…-SHARED`) are turns on the whole card: the label is that of the card and is
    not divided (k8s-device-plugin `internal/lm/resource.go`). `0` is what an invalid MIG configuration is given there.
    """
    if value is None:
        return NoMemory(f"label {MEMORY_LABEL} is missing")
    number = parse_uint(value)
    if number is None or number > MOST_INT64:
        return NoMemory(f"label {MEMORY_LABEL} is {value!r}: a number of MiB or bytes is accepted")
    if number == 0:
        return NoMemory(f"label {MEMORY_LABEL} is {value!r}: it must be above 0")
    return Memory(number // BYTES_FROM if number >= BYTES_FROM else number)


class _HamiDevice(msgspec.Struct):
    devmem: int
    mode: str = ""


def memory_from_hami(register: str) -> Memory | NoMemory:
    """The annotation `hami.io/node-nvidia-register` of HAMi's device plugin: the smallest device that MIG leaves whole.

    Source: HAMi's protocol page (project-hami.io, developers/protocol): a JSON list with `devmem` in MiB, before that
    `uuid,count,devmem,cores,type,numa,health[,index,mode]` a device, with colons between. HAMi multiplies the memory
    by its `deviceMemoryScaling`, which cannot be seen here; hence the label goes first. A device that is not healthy
    counts: it may be well again while the pod waits.
    """
    wrong = NoMemory(f"annotation {HAMI_ANNOTATION} is not understood: {register[:80]!r}")
    try:
        if register.lstrip().startswith("["):
            devices = msgspec.json.decode(register, type=list[_HamiDevice])
        else:
            parts = (device.split(",") for device in register.split(":") if device.strip())
            devices = [_HamiDevice(int(part[2]), part[8] if len(part) > 8 else "") for part in parts]
    except (ValueError, IndexError):
        return wrong
    sizes = [device.devmem for device in devices if device.mode != "mig"]
    if not sizes or not all(0 < size < BYTES_FROM for size in sizes):
        return wrong
    return Memory(min(sizes), "hami")


def memory_from_node(product: str, capacity: str) -> Memory | None:
    """A GPU that shares the node's memory and so has no figure of its own: the node's memory. None for other GPUs.

    Source: NVIDIA's DGX Spark documentation (known issues): NVML answers "not supported" for the memory of a GB10,
    for which GPU feature discovery writes no label; cuDeviceTotalMem gives the machine's memory. The same holds for
    the integrated GPUs of Jetson. Grace Hopper and Grace Blackwell boards have memory of their own and a label.
    """
    if not any(name in product.split("-") for name in UNIFIED_PRODUCTS):
        return None
    size_bytes = parse_quantity(capacity) or 0
    return Memory(int(size_bytes) >> 20, "unified") if size_bytes >= 1 << 20 else None


def memory_of(facts: NodeFacts) -> NodeMemory | None:
    """The memory of the node's smallest GPU; None for a node without a GPU.

    The label goes first, because it is what KAI's scheduler and binder compute with; HAMi's registration and then the
    node's own memory count only where the label gives nothing.
    """
    if not has_gpu(facts):
        return None
    refused = refuses_shares(facts)
    if refused is not None:
        return refused
    labelled = memory_from_label(facts.labels.get(MEMORY_LABEL))
    if isinstance(labelled, Memory):
        return labelled
    registered = memory_from_hami(facts.hami_register) if facts.hami_register else labelled
    if isinstance(registered, Memory):
        return registered
    return memory_from_node(facts.labels.get(PRODUCT_LABEL, ""), facts.capacity.get("memory", "")) or labelled
