from pathlib import Path

import pytest
from tests.fakegpu.machine import LIBRARIES, Card, Machine, make_machine
from tests.native.container import LIBRARY, Container, make_container

SECOND_CARD = Card(uuid="GPU-22222222-3333-4444-5555-666666666666")


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """The suite tests what is built."""
    assert LIBRARY.exists(), "run `make -C native/hami-core` first"
    assert (LIBRARIES / "libcuda.so.1").exists(), "run `make -C tests/fakegpu` first"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two cards of 15,360 MiB, which the host has seen."""
    made = make_machine(tmp_path, Card(), SECOND_CARD, cuda="13.0")
    made.nvidia_smi("-L")
    return made


@pytest.fixture
def container(machine: Machine, tmp_path: Path) -> Container:
    """A container with 4096 MiB of each card."""
    return make_container(machine, tmp_path / "vgpu", memory="4096m", devices="2")
