from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.compute.model import Usage, build, run
from tests.fakegpu.machine import LIBRARIES


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where worker and sampler are."""
    assert (LIBRARIES / "libcuda.so.1").exists(), "run `make -C tests/fakegpu` first"
    folder = tmp_path_factory.mktemp("programs")
    build(folder)
    return folder


@pytest.fixture
def model(programs: Path, tmp_path: Path) -> Callable[..., Usage]:
    """run() in a folder of its own."""
    numbers = count()

    def run_in_folder(*arguments: object, **options: object) -> Usage:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name in ("worker", "sampler"):
            (folder / name).symlink_to(programs / name)
        return run(folder, *arguments, **options)  # type: ignore[arg-type]

    return run_in_folder
