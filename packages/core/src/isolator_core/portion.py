"""KAI's arithmetic: from a request and a node's label to the portion, and from the portion to the limit in MiB.

All of it is float64, as in KAI, because its ceilings and truncations depend on it: 1071 MiB of 15300 are 0.07 of the
card and become 0.08.
"""

import math

GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"

DEFAULT_CARD_MIB = 100
"""What KAI's scheduler takes for a node without a valid label (KAI: node_info.go, DefaultGpuMemory)."""

_BYTES_FROM = 1 << 20
_MIB = 1 << 20
_STEP_MIB = 100


def floored_card_mib(label: int | None) -> int:
    """MiB of one GPU as KAI's scheduler counts them, from the node label `nvidia.com/gpu.memory`.

    No valid label counts as 100 MiB; a value from 1048576 up is taken as bytes (a fault of older GPU feature
    discovery); then the value is floored to a multiple of 100. Source: KAI, pkg/scheduler/api/node_info/node_info.go,
    getNodeGpuMemory.
    """
    if label is None or label <= 0:
        return DEFAULT_CARD_MIB
    mib = label // _MIB if label >= _BYTES_FROM else label
    return mib - mib % _STEP_MIB


def portion_of_memory(memory_mib: int, card_mib: int) -> float:
    """Portion of a card of `card_mib` (floored, see `floored_card_mib`) that a `gpu-memory` request takes.

    The ceiling to two decimals is taken on float64. Source: KAI,
    pkg/scheduler/api/node_info/gpu_sharing_node_info.go, getGpuMemoryFractionalOnNode. A card floored to 0 MiB gives
    infinity, which fits nowhere.
    """
    if card_mib == 0:
        return math.inf
    return math.ceil(float(memory_mib) / float(card_mib) * 100) / 100


def fits_card(portion: float) -> bool:
    """Whether KAI's scheduler lets a portion on one GPU at all (KAI: isValidGpuPortion, portion <= 1)."""
    return portion <= 1


def portion_text(portion: float) -> str:
    """The portion as the scheduler hands it to the binder: two decimals, correctly rounded from the float64.

    0.335 gives `0.34`, 0.125 gives `0.12`, 0.996 gives `1.00`, 0.0049 gives `0.00`. Source: KAI,
    pkg/scheduler/cache/cache.go, createBindRequest (`fmt.Sprintf("%.2f")`).
    """
    return f"{portion:.2f}"


def limit_mib(label: int, portion: str) -> int:
    """MiB that KAI's binder writes as `CUDA_DEVICE_MEMORY_LIMIT` for a portion on a node with this label.

    The label is taken raw: neither floored nor read as bytes, unlike in the scheduler. The product is truncated. 0
    means that KAI has no limit to write. Source: KAI, pkg/binder/plugins/hamicore/hami_core.go,
    calculateCudaDeviceMemoryLimit.
    """
    return int(float(label) * float(portion))
