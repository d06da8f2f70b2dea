from pathlib import Path

import pytest
from tests.fakegpu.machine import LIBRARIES, Machine, make_machine


@pytest.fixture(scope="session", autouse=True)
def _libraries() -> None:
    """The suite tests what is built: `make -C tests/fakegpu` first."""
    assert (LIBRARIES / "libcuda.so.1").exists(), "run `make -C tests/fakegpu` first"
    assert (LIBRARIES / "libnvidia-ml.so.1").exists(), "run `make -C tests/fakegpu` first"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One Tesla T4."""
    return make_machine(tmp_path)
