"""The machine's own card and driver in place of the fake ones."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest
from tests.fakegpu.machine import Machine
from tests.native.client import Client, Server
from tests.native.container import Container, make_container

SHARE_MIB = 2048


@dataclass(frozen=True)
class RealMachine(Machine):
    """Programs find the driver as they do on this machine."""

    def environment(self, **variables: str) -> dict[str, str]:
        """The test's environment, without what chooses devices."""
        return {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")} | variables


@pytest.fixture(scope="session", autouse=True)
def card() -> Iterator[pynvml.c_nvmlDevice_t]:
    """The first card, or a skip that says so."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"NOT RUN: no NVIDIA GPU here ({error}); the suite against NVIDIA's driver needs one")
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


@pytest.fixture
def machine() -> RealMachine:
    return RealMachine(Path(os.devnull))


@pytest.fixture
def container(machine: RealMachine, tmp_path: Path) -> Container:
    """A container with 2 GiB of the card."""
    return make_container(machine, tmp_path / "vgpu", memory=f"{SHARE_MIB}m", devices="1")


@pytest.fixture
def client(container: Container) -> Iterator[Client]:
    """A process of the container with the first card's primary context."""
    server = Server(container.environment())
    made = server.client()
    assert made.run("start(), retain_primary(1, 0)") == ["SUCCESS"] * 2
    made.run("use(1)")
    yield made
    made.kill()
    server.close()
