"""Processes in every relation to each other, and what the container's books say when they have ended."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.everywhere import builds
from tests.everywhere.container import Container, write_card

from isolator_testing.tools import require, require_root

MIB = 1024 * 1024
SCENARIOS = ["fork-before", "fork-after", "vfork", "clone-files", "raw-clone", "exec", "daemon", "threads"]


@pytest.fixture
def program() -> Path:
    return builds.program("processes", "x86_64", "-ldl", "-pthread", build="processes")


def device(container: Container) -> Any:
    container.library.chmod(0o755)
    ended = container.run(container.library, "--json", preload="")
    return json.loads(ended.output)["devices"][0]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_process_counts_for_itself_and_as_long_as_it_lives(
    container: Container, program: Path, scenario: str
) -> None:
    ended = container.run(program, scenario)
    assert ended.status == 0, ended.errors
    assert device(container)["used_bytes"] == 0


def test_a_handler_that_does_not_return_leaves_no_lock_behind(container: Container, program: Path) -> None:
    """What the library does by itself before a refusal is made slow here, so that the signals come while it is done."""
    strace = require("strace", package="strace")
    slowly = ("-f", "-o", "/dev/null", "-e", "inject=openat,fcntl:delay_enter=1000", "-e", "trace=openat,fcntl")
    ended = container.run(strace, *slowly, "-E", f"LD_PRELOAD={container.library}", program, "left", preload="")
    assert ended.status == 0, ended.errors
    assert device(container)["used_bytes"] == 0


def test_a_start_that_fails_can_be_tried_again(container: Container, program: Path) -> None:
    ended = container.run(program, "retry", container.folder / "vgpu/limits/request")
    assert ended.status == 0, ended.errors
    assert ended.errors.count("CUDA is refused") == 1


def test_a_start_that_fails_in_the_driver_can_be_tried_again(container: Container, program: Path) -> None:
    ended = container.run(program, "driver-retry", FAKEGPU_FAULTS="cuInit=error:999@1")
    assert (ended.status, ended.errors) == (0, "")
    assert device(container)["used_bytes"] == 0


@pytest.mark.root
def test_in_a_chroot_the_limit_cannot_be_found_and_cuda_is_refused(container: Container, program: Path) -> None:
    require_root()
    jail = container.folder / "jail"
    inside = jail / container.folder.relative_to("/")
    inside.mkdir(parents=True)
    write_card(inside / "fakegpu.conf")
    ended = container.run(program, "chroot", jail)
    assert ended.status == 0, ended.errors
    assert "CUDA is refused" in ended.errors


def test_64_that_start_together_are_all_counted(container: Container) -> None:
    (container.folder / "vgpu/limits/request").write_text("container=main\nmemory=15000m\n")
    hold = builds.program("hold", "x86_64", "-ldl", build="hold")
    environment = container.variables(LD_PRELOAD=str(container.library), HOLD_MIB="32")
    with ExitStack() as stack:
        held = [
            stack.enter_context(
                subprocess.Popen([hold], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(64)
        ]
        said = [process.stdout.readline() for process in held if process.stdout is not None]
        told = device(container)
        for process in held:
            process.communicate("")
    assert said == ["holding\n"] * 64
    assert {entry["pid"] for entry in told["processes"]} == {process.pid for process in held}
    assert told["used_bytes"] == 64 * 132 * MIB
    assert device(container)["used_bytes"] == 0
