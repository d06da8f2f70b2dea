"""NVIDIA's container runtime for tests: gives a container the driver of the GPUs that its environment names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.node.objects import PodFailure
from tests.node.runtime import Bind

RUNTIME_CLASS = "nvidia"
DRIVER_DIRECTORY = "/usr/local/nvidia/lib64"
STATE = "state"


@dataclass(frozen=True)
class Driver:
    """The node's driver. The loader finds it by its cache, so a process without any environment has it too."""

    directory: Path
    """`libcuda.so.1`, `libnvidia-ml.so.1` and what they read, bound read-only at DRIVER_DIRECTORY, but for `state`
    below it, which all processes of the node share."""
    gpus: Sequence[str]
    """UUIDs of the node's GPUs, which is what KAI writes to NVIDIA_VISIBLE_DEVICES."""


def give(driver: Driver, environment: Mapping[str, str]) -> tuple[list[Bind], list[str]]:
    """Binds and library directories for a container with this environment, none if it asks for no GPU.

    `void`, an empty or an absent NVIDIA_VISIBLE_DEVICES ask for none (NVIDIA container toolkit). A container gets all
    GPUs of the node or none: a test that needs a part of them has to bring a driver for it.
    """
    wanted = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if wanted in ("", "void"):
        return [], []
    if wanted != "all" and set(wanted.split(",")) != set(driver.gpus):
        raise PodFailure(
            "RunContainerError",
            f"NVIDIA_VISIBLE_DEVICES is {wanted}, the GPUs of this node are {','.join(driver.gpus)}",
        )
    return [
        Bind(driver.directory, DRIVER_DIRECTORY, read_only=True),
        Bind(driver.directory / STATE, f"{DRIVER_DIRECTORY}/{STATE}", read_only=False),
    ], [DRIVER_DIRECTORY]
