"""What an operator chooses about the patch."""

from dataclasses import dataclass

from isolator_core import names


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that the pure part needs; `cli` makes them from settings."""

    host_dir: str = names.HOST_DIR
    container_dir: str = names.CONTAINER_DIR
    region_size_mib: int = 16
