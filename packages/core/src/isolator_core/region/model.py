"""What a reading of a region says. Plain values, ready for a wire (msgspec) and for arithmetic."""

import msgspec


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that one process holds on one device. `total` is at least the sum of the parts."""

    context: int
    module: int
    buffer: int
    total: int
    sm_percent: int
    """How busy the process keeps the device's multiprocessors, 0 to 100."""


class Process(msgspec.Struct, frozen=True):
    """One living process of the container."""

    slot: int
    pid: int
    """As the container sees it. Written by the tenant."""
    host_pid: int
    """As this node sees it, from the kernel; 0 if it cannot be told."""
    name: str
    """The program's name; empty without an extension block. Written by the tenant."""
    attached: int
    """Unix seconds; 0 if it is not known."""
    memory: tuple[Memory, ...]
    """By device, as `Region.devices`."""


class Device(msgspec.Struct, frozen=True):
    """One GPU as the container sees it."""

    index: int
    uuid: str
    """Empty where the container has not learnt it yet."""
    limit_bytes: int
    """0 = none."""
    sm_limit_percent: int
    """100 and above, or 0 = none."""
    refusals: int = 0
    """How often memory was refused because of the limit. This and what follows: 0 without an extension block."""
    last_refusal: int = 0
    """Unix seconds."""
    last_refused_bytes: int = 0
    throttled_nanoseconds: int = 0


class Region(msgspec.Struct, frozen=True):
    """One container's region at one moment."""

    layout: str
    """`0` or `1.<minor>`."""
    extended: bool
    """There is an extension block."""
    managed: bool
    """A managed container made it."""
    liveness: bool
    """Who is attached is known from record locks; otherwise every slot in use counts."""
    inode: int
    """Tells a region from one that took its place."""
    created: int
    """Unix seconds; 0 without an extension block."""
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    last_kernel_time: int
    """Unix seconds; 0 = none yet, or a layout without it."""
