"""What RTLD_DEEPBIND lets pass by the library is found by the monitor."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.everywhere import builds
from tests.fakegpu.machine import CONTEXT_BYTES, Card, Machine
from tests.integration.test_monitor_unprotected import LIBRARY, UID, cgroup, machine, once, unprotected

__all__ = ["cgroup", "machine"]
pytestmark = pytest.mark.root

GIB = 1 << 30
NOT_ATTACHED = 'isolator_container_unprotected{container="main",namespace="team",pod="a",reason="no_region"}'
SERIES = f'container="main",device_uuid="{Card().uuid}",namespace="team",pod="a",vdevice_index="0"'


@contextmanager
def holding(machine: Machine, vgpu: Path, *command: str | Path, mib: int) -> Iterator[subprocess.Popen[str]]:
    """A program with the library preloaded that has taken GPU memory and keeps it."""
    variables = {
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_MEMORY_LIMIT": "2048m",
        "POD_UID": UID,
        "CONTAINER_NAME": "main",
        "CONTAINER_VGPU_MOUNT": str(vgpu),
        "HOLD_MIB": str(mib),
    }
    with subprocess.Popen(
        [str(word) for word in command],
        env=machine.environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.communicate("")


@pytest.fixture
def programs() -> tuple[Path, Path, Path]:
    """One that holds memory, a host of plugins, and a plugin that holds memory."""
    plugin = builds.program("hold", "x86_64", "-shared", "-fPIC", "-Dmain=allocate", "-ldl", build="plugin")
    host = builds.program("host", "x86_64", "-ldl", build="host")
    return builds.program("hold", "x86_64", "-ldl", build="hold"), host, plugin


def test_a_process_that_never_met_the_library(
    tmp_path: Path, machine: Machine, cgroup: Path, programs: tuple[Path, Path, Path]
) -> None:
    _, host, plugin = programs
    with holding(machine, tmp_path / "vgpu", host, plugin, "deepbind", mib=3072) as process:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        found = once(tmp_path, machine)
    assert unprotected(found) == [NOT_ATTACHED]


def test_one_beside_processes_that_are_held(
    tmp_path: Path, machine: Machine, cgroup: Path, programs: tuple[Path, Path, Path]
) -> None:
    hold, host, plugin = programs
    with (
        holding(machine, tmp_path / "vgpu", hold, mib=1024) as held,
        holding(machine, tmp_path / "vgpu", host, plugin, "deepbind", mib=3072) as process,
    ):
        for member in (held, process):
            (cgroup / "cgroup.procs").write_text(str(member.pid))
        found = once(tmp_path, machine)
    assert unprotected(found) == [NOT_ATTACHED]
    assert found[f'hami_vgpu_memory_used_bytes{{{SERIES},zone="vGPU"}}'] == GIB + CONTEXT_BYTES
    assert found[f"isolator_container_nvml_memory_used_bytes{{{SERIES}}}"] == 4 * GIB + 2 * CONTEXT_BYTES


def test_the_same_plugin_without_the_flag_is_held(
    tmp_path: Path, machine: Machine, cgroup: Path, programs: tuple[Path, Path, Path]
) -> None:
    _, host, plugin = programs
    with holding(machine, tmp_path / "vgpu", host, plugin, mib=1024) as process:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        found = once(tmp_path, machine)
    assert unprotected(found) == []
    assert found[f'hami_vgpu_memory_used_bytes{{{SERIES},zone="vGPU"}}'] == GIB + CONTEXT_BYTES
