"""What a node says of its GPU's memory."""

import pytest

from isolator_vramd.memory import Memory, NoMemory, memory_from_label, memory_of


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        ("15360", 15360),
        ("0100", 100),
        ("1", 1),
        ("1048575", 1048575),
        ("1048576", 1),
        ("42949672960", 40960),
        ("16106127360", 15360),
        ("999999999999999999", 953674316406),
    ],
)
def test_label_in_mib_and_in_bytes(value: str, mib: int) -> None:
    assert memory_from_label(value) == Memory(mib)


@pytest.mark.parametrize("value", ["", "0", "000", "15Gi", "15360m", "-1", "1e3", "1_000", "٣", "9" * 19, "15360\n"])
def test_label_that_is_no_amount(value: str) -> None:
    memory = memory_from_label(value)
    assert isinstance(memory, NoMemory)
    assert "nvidia.com/gpu.memory" in memory.reason
    assert repr(value) in memory.reason


def test_who_has_a_gpu() -> None:
    assert memory_of({}, {}) is None
    assert memory_of({"nvidia.com/gpu.count": "0"}, {"nvidia.com/gpu": "0", "cpu": "8"}) is None
    missing = NoMemory("label nvidia.com/gpu.memory is missing")
    assert memory_of({"nvidia.com/gpu.present": "true"}, {}) == missing
    assert memory_of({"nvidia.com/gpu.count": "2"}, {}) == missing
    assert memory_of({}, {"nvidia.com/gpu": "1"}) == missing
