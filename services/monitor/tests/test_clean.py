"""What ended pods left is removed; what could be anyone's is not, whatever stands in its place."""

import fcntl
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from isolator_core.errors import UserError
from isolator_core.region.locks import held_slots
from isolator_monitor.clean import Cleaner
from isolator_testing.regions import RegionImage, hold, write

GONE, ALIVE = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
IMAGE = RegionImage([], {}).v1()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "kubelet" / "pods" / ALIVE).mkdir(parents=True)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def clean(root: Path, least_age: float = 0.0) -> list[str]:
    with closing(Cleaner(root, root.parent / "kubelet", least_age, 1000)) as cleaner:
        return sorted(cleaner.clean())


def test_only_pods_that_the_kubelet_has_forgotten(root: Path) -> None:
    for uid in (GONE, ALIVE):
        write(root / f"{uid}_main", IMAGE)
        write(root / f"{uid}_side" / "deeper", IMAGE)
    others = [
        "notes",
        f"{GONE}",
        f"{GONE}_",
        f"_{GONE}",
        f"{GONE}_Main",
        f"{GONE.replace('-', '')}_main",
        f"x{GONE}_main",
    ]
    for name in others:
        (root / name).mkdir()
    assert clean(root) == [f"{GONE}_main", f"{GONE}_side"]
    assert {path.name for path in root.iterdir()} == {f"{ALIVE}_main", f"{ALIVE}_side", *others}
    assert (root / f"{ALIVE}_side" / "deeper" / "usage.cache").exists()


def test_not_before_its_time(root: Path) -> None:
    path = write(root / f"{GONE}_main", IMAGE).parent
    os.utime(path, (0, 0))
    assert clean(root, least_age=60) == []
    assert path.exists()


def test_not_while_who_is_attached_cannot_be_told(root: Path) -> None:
    """Many locks take too long to look through, and a lease hinders from looking."""
    lock = write(root / f"{GONE}_main", IMAGE).parent / "usage.lock"
    with hold(lock, [5]), patch("isolator_monitor.clean.held_slots", lambda *found: held_slots(*found, -1.0)):
        assert clean(root) == []
    lock.touch()
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with lock.open("r+") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            assert clean(root) == []
    finally:
        signal.signal(signal.SIGIO, before)
    assert clean(root) == [f"{GONE}_main"]


def test_not_while_a_process_is_attached(root: Path) -> None:
    path = write(root / f"{GONE}_main", IMAGE).parent
    with hold(path / "usage.lock", [5]):
        assert clean(root) == []
    assert clean(root) == [path.name]


def test_links_are_removed_and_not_followed(root: Path) -> None:
    outside = root.parent / "outside"
    write(outside / "precious", IMAGE)
    (root / f"{GONE}_main").symlink_to(outside)
    write(root / f"{GONE}_side", IMAGE)
    (root / f"{GONE}_side" / "link").symlink_to(outside)
    (root / f"{GONE}_side" / "itself").symlink_to("itself")
    os.mkfifo(root / f"{GONE}_side" / "fifo")
    assert clean(root) == [f"{GONE}_main", f"{GONE}_side"]
    assert (outside / "precious" / "usage.cache").exists()


def test_without_the_kubelets_directory_nothing_is_removed(root: Path) -> None:
    write(root / f"{GONE}_main", IMAGE)
    (root.parent / "kubelet" / "pods" / ALIVE).rmdir()
    with pytest.raises(UserError, match="is empty: without the kubelet's directory"):
        clean(root)
    (root.parent / "kubelet" / "pods").rmdir()
    with pytest.raises(UserError, match="pods: No such file"):
        clean(root)
    assert (root / f"{GONE}_main").exists()


def test_a_pass_is_bounded_and_the_next_one_goes_on(root: Path) -> None:
    for number in range(300):
        (root / f"junk{number}").touch()
    big = root / f"{GONE}_main"
    big.mkdir()
    for number in range(500):
        (big / str(number)).touch()
    passes = 0
    with closing(Cleaner(root, root.parent / "kubelet", 0.0, 100)) as cleaner:
        while big.exists():
            before = len([*root.rglob("*")])
            cleaner.clean()
            assert before - len([*root.rglob("*")]) <= 100
            passes += 1
            assert passes < 40
    assert passes > 5
    assert len(list(root.iterdir())) == 300


def test_a_deep_tree_is_left_and_costs_no_stack(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    name = f"{GONE}_main"
    for _ in range(500):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here, name = below, "d"
    os.close(here)
    start = time.monotonic()
    assert clean(root) == []
    assert time.monotonic() - start < 10
    assert (root / f"{GONE}_main").exists()
