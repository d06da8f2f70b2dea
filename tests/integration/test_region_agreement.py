"""The C library and the Python reader mean the same by every byte of a region."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, LIBRARIES, MIB, Card, Machine, Process, make_machine

from isolator_core.region import Region, extension, layout_v1, open_beneath, read_region
from isolator_testing.tools import require

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native" / "hami-core"
UID = "5e2f7a2c-9f4a-4b53-8d5c-2f1f3b9a7e10"
LIMIT_MIB = 4147
SECOND = "GPU-11111111-2222-3333-4444-666666666666"

STRUCTURES: dict[type[ctypes.Structure], tuple[str, int]] = {
    layout_v1.UsedMemory: ("struct hami_used", 0),
    layout_v1.DeviceUtilisation: ("struct hami_utilization", 0),
    layout_v1.Slot: ("struct hami_slot", 0),
    layout_v1.Header: ("struct hami_region", 0),
    layout_v1.Trailer: ("struct hami_region", layout_v1.TRAILER_OFFSET),
    extension.Header: ("struct extension_header", 0),
    extension.Device: ("struct extension_device", 0),
    extension.Slot: ("struct extension_slot", 0),
    extension.Lane: ("struct lane", 0),
    extension.Block: ("struct extension", 0),
}
C_NAMES: dict[tuple[type[ctypes.Structure], str], str] = {
    (extension.Device, "total"): "books.total",
    (extension.Device, "tag"): "books.tag",
    (extension.Device, "balance"): "compute.balance",
    (extension.Device, "refilled_at"): "compute.refilled_at",
    (extension.Device, "refilled"): "compute.refilled",
}


def named_fields() -> list[tuple[type[ctypes.Structure], str]]:
    return [
        (structure, field[0])
        for structure in STRUCTURES
        for field in structure._fields_
        if not field[0].startswith("reserved")
    ]


def test_every_field_lies_where_the_library_has_it(tmp_path: Path) -> None:
    """By the C compiler, from the library's own header."""
    lines = []
    for structure, field in named_fields():
        name, base = STRUCTURES[structure]
        member = C_NAMES.get((structure, field), field)
        lines.append(f'printf("%zu %zu\\n", offsetof({name}, {member}) - {base}, sizeof((({name} *)0)->{member}));')
    lines.append('printf("%zu %d\\n", sizeof(struct region_file), EXTENSION_OFFSET);')
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stdio.h>\n#include "region_layout.h"\nint main(void)\n{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    compiler = require("cc", package="gcc")
    subprocess.run([compiler, "-I", NATIVE / "src", "-o", tmp_path / "offsets", source], check=True)
    printed = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout.splitlines()
    *rows, last = [tuple(map(int, line.split())) for line in printed]
    for (structure, field), found in zip(named_fields(), rows, strict=True):
        descriptor: Any = getattr(structure, field)
        assert (descriptor.offset, descriptor.size) == found, f"{structure.__name__}.{field}"
    assert last == (extension.END, extension.OFFSET)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    require_build()
    return make_machine(tmp_path, Card(), Card(uuid=SECOND))


def require_build() -> None:
    assert (NATIVE / "build" / "libvgpu.so").exists(), "run `./dev run nox -s native` first"
    assert (LIBRARIES / "libcuda.so.1").exists(), "run `./dev run nox -s native` first"


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "vgpu" / "containers").mkdir(parents=True)
    return {
        "LD_PRELOAD": str(NATIVE / "build" / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m",
        "POD_UID": UID,
        "CONTAINER_NAME": "main",
        "CONTAINER_VGPU_MOUNT": str(tmp_path / "vgpu"),
    }


@pytest.fixture
def two_users(machine: Machine, variables: dict[str, str]) -> Iterator[tuple[Process, Process]]:
    """Two processes of one container on the first and the second card."""
    with (
        machine.user(device=0, wrapper=(), **variables) as one,
        machine.user(device=1, wrapper=(), **variables) as two,
    ):
        yield one, two


def read(tmp_path: Path) -> Region:
    with open_beneath(tmp_path / "vgpu" / "containers", f"{UID}_main") as directory:
        return read_region(directory)


def test_reader_sees_what_the_processes_did(tmp_path: Path, two_users: tuple[Process, Process]) -> None:
    one, two = two_users
    one.run("a = ok(d.cuMemAlloc(1 << 30))")
    two.run("b = ok(d.cuMemAlloc(3 << 30))")
    assert two.run("code(d.cuMemAlloc(2 << 30))") == "OUT_OF_MEMORY"
    region = read(tmp_path)
    assert (region.layout, region.extended, region.managed, region.liveness) == ("1.2", True, False, True)
    assert [(device.uuid, device.limit_bytes) for device in region.devices] == [
        (Card().uuid, LIMIT_MIB * MIB),
        (SECOND, LIMIT_MIB * MIB),
    ]
    assert [device.refusals for device in region.devices] == [0, 1]
    assert region.devices[1].last_refused_bytes == 2 << 30
    assert region.devices[1].last_refusal >= region.created > 1_700_000_000
    by_pid = {process.host_pid: process for process in region.processes}
    assert set(by_pid) == {one.popen.pid, two.popen.pid}
    for process, device, held in ((one, 0, 1 << 30), (two, 1, 3 << 30)):
        seen = by_pid[process.popen.pid]
        assert seen.pid == process.popen.pid
        assert seen.name == Path(f"/proc/{process.popen.pid}/comm").read_text().strip()
        assert seen.attached >= region.created
        memory = seen.memory[device]
        assert memory.buffer == held
        assert memory.total == memory.context + memory.module + memory.buffer
        assert memory.context == CONTEXT_BYTES
        assert seen.memory[1 - device].buffer == 0
        free, total = process.run("ok(d.cuMemGetInfo())")
        used = sum(other.memory[device].total for other in region.processes)
        assert (total, total - free) == (LIMIT_MIB * MIB, used)


def test_dead_processes_are_gone_at_once(tmp_path: Path, two_users: tuple[Process, Process]) -> None:
    one, two = two_users
    one.run("a = ok(d.cuMemAlloc(1 << 30))")
    one.popen.kill()
    one.popen.wait(60)
    assert [process.host_pid for process in read(tmp_path).processes] == [two.popen.pid]


def test_the_books_add_up(tmp_path: Path, two_users: tuple[Process, Process]) -> None:
    """What HAMi's part says of each process is what the lanes of the extension block say."""
    one, _ = two_users
    one.run("a = ok(d.cuMemAlloc(1 << 30))")
    one.run("ok(d.cuMemFree(a))")
    one.run("a = ok(d.cuMemAlloc(5 << 20))")
    data = (tmp_path / "vgpu" / "containers" / f"{UID}_main" / "usage.cache").read_bytes()
    block = extension.Block.from_buffer_copy(data, extension.OFFSET)
    region = read(tmp_path)
    for process in region.processes:
        assert block.slots[process.slot].state == 1
        assert block.slots[process.slot].pid == process.pid
        for device in range(2):
            lane = block.lanes[process.slot][device]
            assert lane.value[lane.settled & 1] == process.memory[device].total
    for device in range(2):
        assert block.devices[device].total == sum(process.memory[device].total for process in region.processes)
        assert block.devices[device].limit == region.devices[device].limit_bytes


def test_monitor_shows_region_and_cards_together(
    tmp_path: Path, machine: Machine, two_users: tuple[Process, Process]
) -> None:
    one, _ = two_users
    one.run("a = ok(d.cuMemAlloc(1 << 30))")
    pods = tmp_path / "pods.yaml"
    pods.write_text(
        f"kind: PodList\nitems:\n- metadata: {{name: a, namespace: team, uid: {UID}}}\n"
        "  spec: {containers: [{name: main}]}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "isolator_monitor", "once", "--pods-file", pods, "--region-root",
         tmp_path / "vgpu" / "containers"],
        env=machine.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )  # fmt: skip
    used = sum(process.memory[0].total for process in read(tmp_path).processes)
    where = f'container="main",device_uuid="{Card().uuid}",namespace="team",pod="a",vdevice_index="0",zone="vGPU"'
    shown = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if not line.startswith("#"))
    assert float(shown[f"hami_vgpu_memory_used_bytes{{{where}}}"]) == used
    host = f'device_index="0",device_type="NVIDIA-Tesla T4",device_uuid="{Card().uuid}"'
    # The driver gives memory in units of 2 MiB and keeps some for itself.
    assert float(shown[f'hami_host_gpu_memory_used_bytes{{{host},zone="vGPU"}}']) >= 1 << 30
    assert float(shown[f"isolator_gpu_memory_total_bytes{{{host}}}"]) == 15360 * MIB
    assert float(shown[f"isolator_gpu_limits_bytes{{{host}}}"]) == LIMIT_MIB * MIB
    assert float(shown["isolator_nvml_up"]) == 1
