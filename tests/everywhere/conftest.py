from pathlib import Path

import pytest
from tests.everywhere.container import Container, machine_gpu, machine_library, make_container


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """The shipped library, managed, and a fake card."""
    return make_container(tmp_path / "with-card", machine_library(), machine_gpu())


@pytest.fixture
def without_driver(tmp_path: Path) -> Container:
    """The shipped library, managed, and no driver."""
    return make_container(tmp_path / "without-driver", machine_library(), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-compatibility", action="store_true", help="write what is found into docs/compatibility.md"
    )
