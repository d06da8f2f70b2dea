"""The limit that libvgpu enforces, from the files that the kubelet keeps on the node."""

from pathlib import Path

import pytest

from isolator_core.region import Kind, RegionError
from isolator_monitor.limit_files import LimitFiles, LimitInvalid, limit_on_card, read_limit_files

MIB = 1 << 20
T4 = 15360 * MIB


def volume(root: Path, generation: str, files: dict[str, str]) -> Path:
    """A projected volume as the kubelet lays it out."""
    directory = root / "pods" / "u" / "volumes" / "limits"
    (directory / generation).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / generation / name).write_text(text)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data").unlink(missing_ok=True)
    (directory / "..data").symlink_to(generation)
    return directory


PLACE = ("pods", "u", "volumes", "limits")


def test_files_of_one_generation(tmp_path: Path) -> None:
    volume(tmp_path, "..2026_11_29_10_00_00.1234567890", {"request": "container=main\nmemory=1m\n"})
    assert read_limit_files(tmp_path, PLACE) == LimitFiles("container=main\nmemory=1m\n", None)
    files = {"request": "container=main\nmemory=2m\n", "uid": "u", "CUDA_DEVICE_MEMORY_LIMIT": "3m"}
    volume(tmp_path, "..2026_11_29_10_00_01.1234567890", files)
    assert read_limit_files(tmp_path, PLACE) == LimitFiles("container=main\nmemory=2m\n", "3m")


@pytest.mark.parametrize(
    ("link", "kind"), [(None, Kind.ABSENT), ("/etc", Kind.LINK), ("..", Kind.LINK), ("..gone", Kind.ABSENT)]
)
def test_a_volume_that_is_not_the_kubelets(tmp_path: Path, link: str | None, kind: Kind) -> None:
    (tmp_path / "limits").mkdir()
    if link:
        (tmp_path / "limits" / "..data").symlink_to(link)
    with pytest.raises(RegionError) as caught:
        read_limit_files(tmp_path, ("limits",))
    assert caught.value.kind is kind


def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    directory = volume(tmp_path, "..g", {})
    (directory / "..g" / "request").symlink_to("/etc/passwd")
    with pytest.raises(RegionError):
        read_limit_files(tmp_path, PLACE)


@pytest.mark.parametrize("name", ["request", "CUDA_DEVICE_MEMORY_LIMIT"])
def test_a_file_that_the_library_refuses_for_its_length_gives_no_limit(tmp_path: Path, name: str) -> None:
    directory = volume(tmp_path, "..g", {"request": "container=main\nmemory=1m\n", "CUDA_DEVICE_MEMORY_LIMIT": "1m"})
    text = (directory / "..g" / name).read_text()
    (directory / "..g" / name).write_text(text.ljust(1023, "\n"))
    assert limit_on_card(read_limit_files(tmp_path, PLACE), T4) == MIB
    (directory / "..g" / name).write_text(text.ljust(1024, "\n"))
    with pytest.raises(RegionError, match=f"{name} has 1024 bytes"):
        read_limit_files(tmp_path, PLACE)


def limit(request: str, kai: str | None = None, card: int | None = T4) -> int | None:
    return limit_on_card(LimitFiles(f"container=main\n{request}\n", kai), card)


@pytest.mark.parametrize(
    ("request_line", "kai", "card", "expected"),
    [
        ("memory=4096m", None, T4, 4096 * MIB),
        ("memory=4096m", None, None, 4096 * MIB),
        ("memory=4096m", "4147m", T4, 4147 * MIB),
        ("memory=4096m", "4147m\n", None, 4147 * MIB),
        # KAI's file counts only up to what the request can mean on this card.
        ("memory=4096m", "15360m", T4, 4147 * MIB),
        ("memory=4096m", "100m", T4, 100 * MIB),
        ("fraction=0.5", None, T4, T4 // 2),
        ("fraction=0.5", None, None, None),
        ("fraction=0.5", "7680m", T4, 7680 * MIB),
        ("fraction=0.125", "99999m", T4, 1843 * MIB),
        # Portion 0.00 is an error in KAI, so that the product counts.
        ("fraction=0.004", "99999m", T4, T4 * 4 // 1000),
        ("fraction=0.25\nat-most=3000m", None, T4, 3000 * MIB),
        ("memory=none", None, T4, 0),
        ("memory=16000m", "99999m", T4, T4),
        # Python makes no integer of more than 4,300 digits, and the library looks at 18 places.
        pytest.param("fraction=0.5" + "0" * 5000, None, T4, T4 // 2, id="zeros behind"),
        pytest.param("fraction=" + "0" * 5000 + ".5", None, T4, T4 // 2, id="zeros before"),
        ("fraction=0.0000000001746229827404022216796875", None, 1 << 34, 2),
    ],
)
def test_limit(request_line: str, kai: str | None, card: int | None, expected: int | None) -> None:
    assert limit(request_line, kai, card) == expected


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (LimitFiles(None, "1m"), "request is missing"),
        (LimitFiles("", None), "container is missing"),
        (LimitFiles("container=a\nmemory=0m\n", None), "memory is '0"),
        (LimitFiles("container=a\nmemory=1m\n", "0m"), "CUDA_DEVICE_MEMORY_LIMIT is '0m'"),
        (LimitFiles("container=a\nmemory=1m\n", "abc"), "CUDA_DEVICE_MEMORY_LIMIT is 'abc'"),
        (LimitFiles("container=a\nmemory=1m\n", ""), "CUDA_DEVICE_MEMORY_LIMIT is ''"),
    ],
)
def test_files_from_which_no_limit_follows(files: LimitFiles, words: str) -> None:
    with pytest.raises(LimitInvalid, match=words):
        limit_on_card(files, T4)
