"""A node with something of everything, for what is shown to people and to Prometheus."""

import dataclasses
import time
from collections.abc import Callable

import pytest

from isolator_core.region import Device, Kind, Memory, Process, Region
from isolator_monitor import readings
from isolator_monitor.gpus import Gpu
from isolator_monitor.limit_files import LimitFiles
from isolator_monitor.node import NodeReading
from isolator_monitor.plan import Report
from isolator_monitor.pods import Container, Metadata, Pod, Spec, Status, VolumeMount
from isolator_monitor.readings import Reading
from isolator_monitor.view import Observer, View

GIB = 1 << 30
MIB = 1 << 20
CARDS = (
    Gpu(0, "GPU-6b1f0c5e-93a1-4f0e-8d55-0f7a3b1c2d10", "Tesla T4", 15360 * MIB, 9 * GIB, 61, ()),
    Gpu(1, "GPU-6b1f0c5e-93a1-4f0e-8d55-0f7a3b1c2d11", "Tesla T4", 15360 * MIB, 300 * MIB, None, ()),
)
MOUNTS = (
    VolumeMount(name="lib", mount_path="/usr/local/vgpu/libvgpu.so"),
    VolumeMount(name="preload", mount_path="/etc/ld.so.preload"),
)
SHARES = [
    ("research", "train-resnet-0", "main", 0, 4147, 3.9, 44, 2),
    ("research", "notebook-ada", "jupyter", 0, 7680, 2.1, 12, 0),
    ("serving", "llm-7d9c6f5b8-x2k4q", "model", 0, 4147, 3.0, 5, 0),
]


def view() -> View:
    pods, found = [], []
    for index, (namespace, name, container, card, limit, used, busy, refusals) in enumerate(SHARES):
        uid = f"u-{index}"
        pods.append(
            Pod(
                metadata=Metadata(name=name, namespace=namespace, uid=uid, annotations={"gpu-memory": "4096"}),
                spec=Spec(containers=(Container(name=container, volume_mounts=MOUNTS),)),
                status=Status(phase="Running"),
            )
        )
        memory = Memory(100 * MIB, 0, int(used * GIB) - 100 * MIB, int(used * GIB), busy)
        region = Region(
            layout="1.2",
            extended=True,
            managed=True,
            liveness=True,
            inode=1,
            created=1,
            devices=(Device(0, CARDS[card].uuid, limit * MIB, 30 if index == 1 else 100, refusals),),
            processes=(Process(0, 1, 1, "python3", 1, (memory,)),),
            last_kernel_time=1,
        )
        files = LimitFiles(f"container={container}\nmemory=4096m\n", f"{limit}m") if limit == 4147 else None
        found.append(Reading(uid, container, region, readings.held(region), limit_files=files))
    pods.append(
        Pod(
            metadata=Metadata(name="batch-old", namespace="serving", uid="u-9", annotations={"gpu-fraction": "0.5"}),
            spec=Spec(containers=(Container(name="main"),)),
            status=Status(phase="Running"),
        )
    )
    found.append(Reading("u-9", "main", None, (), Kind.STRING, "the UUID is b'<img src=x>'"))
    node = NodeReading(time.time(), time.monotonic(), 0.01, tuple(found), CARDS, "", {}, {}, "")
    seen = Observer("/usr/local/vgpu", "kai-resource-reservation").observe(pods, time.time(), node)
    return dataclasses.replace(seen, steered=True, steering=Report(told=3))


@pytest.fixture
def scene() -> Callable[[], View]:
    """Takes a view of the node."""
    return view
