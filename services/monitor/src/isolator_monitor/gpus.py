"""What NVML says of a node's GPUs, as plain values: whoever only reads them does without NVML's bindings (14 MB)."""

import msgspec


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that holds a GPU."""

    pid: int
    """As NVML says it: in the PID namespace of the reader."""
    memory: int | None
    """Bytes, where the driver tells."""
    sm_percent: int | None = None
    """How busy it keeps the multiprocessors, 0 to 100, where the driver tells."""


class Gpu(msgspec.Struct, frozen=True):
    """One physical GPU, or one MIG device of it."""

    index: int
    uuid: str
    name: str
    memory_total: int | None
    """Bytes."""
    memory_used: int | None
    """Bytes, of all processes, reserved memory included."""
    utilization: int | None
    """Percent of time in which a kernel ran."""
    processes: tuple[GpuProcess, ...] | None
    mig: tuple[str, ...] = ()
    """UUIDs of its MIG devices."""


class GpuReading(msgspec.Struct, frozen=True):
    """What NVML said."""

    gpus: tuple[Gpu, ...]
    error: str = ""
    """Why there are no GPUs at all; empty where NVML answered."""
    failures: dict[str, int] = {}
    """Calls that failed since the start, by call and error."""
