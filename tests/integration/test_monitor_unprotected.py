"""A container that uses a card without the library is found by NVML and its cgroup, on a fake card, a real kernel."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakegpu.machine import LIBRARIES, MIB, Card, Machine, make_machine

from isolator_testing.tools import require_root, skip_or_fail

pytestmark = pytest.mark.root

LIBRARY = Path(__file__).parents[2] / "native" / "hami-core" / "build" / "libvgpu.so"
UID = "5e2f7a2c-9f4a-4b53-8d5c-2f1f3b9a7e10"
CONTAINER_ID = "0123456789abcdef" * 4
MOUNTS = [
    {"name": "library", "mountPath": "/usr/local/vgpu/libvgpu.so"},
    {"name": "preload", "mountPath": "/etc/ld.so.preload"},
]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup as a kubelet with the cgroupfs driver makes it for a container."""
    require_root()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" and "rw" in mount[3].split(",")), None)
    if root is None:
        skip_or_fail("needs a writable cgroup2 hierarchy")
    # A run that is killed leaves its own, which is empty once its processes are gone.
    top = root / f"kubepods-test-{secrets.token_hex(4)}"
    made = [top, top / f"pod{UID}", top / f"pod{UID}" / CONTAINER_ID]
    try:
        for path in made:
            path.mkdir()
        yield made[-1]
    finally:
        for path in reversed(made):
            if path.exists():
                path.rmdir()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    assert LIBRARY.exists(), "run `./dev run nox -s native` first"
    assert (LIBRARIES / "libcuda.so.1").exists(), "run `./dev run nox -s native` first"
    (tmp_path / "vgpu" / "containers").mkdir(parents=True)
    return make_machine(tmp_path)


def once(tmp_path: Path, machine: Machine) -> dict[str, float]:
    pod = {
        "metadata": {"name": "a", "namespace": "team", "uid": UID, "annotations": {"gpu-memory": "4096"}},
        "spec": {"containers": [{"name": "main", "volumeMounts": MOUNTS}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{CONTAINER_ID}"}],
        },
    }
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [pod]}))
    done = subprocess.run(
        [sys.executable, "-m", "isolator_monitor", "once", "--pods-file", tmp_path / "pods.json", "--region-root",
         tmp_path / "vgpu" / "containers"],
        env=machine.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )  # fmt: skip
    lines = (line.rsplit(" ", 1) for line in done.stdout.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def unprotected(found: dict[str, float]) -> list[str]:
    return [name for name in found if name.startswith("isolator_container_unprotected{")]


def test_a_process_without_the_library(tmp_path: Path, machine: Machine, cgroup: Path) -> None:
    with machine.user() as process:
        (cgroup / "cgroup.procs").write_text(str(process.popen.pid))
        process.run("a = ok(d.cuMemAlloc(1 << 30))")
        found = once(tmp_path, machine)
    assert unprotected(found) == [
        'isolator_container_unprotected{container="main",namespace="team",pod="a",reason="no_region"}'
    ]


def test_a_process_with_the_library(tmp_path: Path, machine: Machine, cgroup: Path) -> None:
    variables = {
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_MEMORY_LIMIT": "4147m",
        "POD_UID": UID,
        "CONTAINER_NAME": "main",
        "CONTAINER_VGPU_MOUNT": str(tmp_path / "vgpu"),
    }
    with machine.user(device=0, wrapper=(), **variables) as process:
        (cgroup / "cgroup.procs").write_text(str(process.popen.pid))
        process.run("a = ok(d.cuMemAlloc(1 << 30))")
        found = once(tmp_path, machine)
    assert unprotected(found) == []
    where = f'container="main",device_uuid="{Card().uuid}",namespace="team",pod="a",vdevice_index="0"'
    # NVML's books and the region's are of one process: both have its context and its gibibyte.
    seen = found[f"isolator_container_nvml_memory_used_bytes{{{where}}}"]
    charged = found[f'hami_vgpu_memory_used_bytes{{{where},zone="vGPU"}}']
    assert charged >= 1 << 30
    assert abs(seen - charged) <= 4 * MIB
