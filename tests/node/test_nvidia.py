"""A container gets the driver that its environment asks for, and its loader finds it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.node import nvidia
from tests.node.kubelet import Kubelet
from tests.node.objects import Api, Json, PodFailure
from tests.node.requirements import require_containers
from tests.node.runtime import Image, interpreter

from isolator_testing.tools import require

GPUS = ("GPU-1", "GPU-2")
PATIENCE = 30.0


@pytest.fixture
def driver(tmp_path: Path) -> nvidia.Driver:
    (tmp_path / "driver" / nvidia.STATE).mkdir(parents=True)
    return nvidia.Driver(tmp_path / "driver", GPUS)


@pytest.mark.parametrize("wanted", ["all", "GPU-1,GPU-2", "GPU-2,GPU-1"])
def test_driver_is_read_only_but_for_its_state(driver: nvidia.Driver, wanted: str) -> None:
    binds, directories = nvidia.give(driver, {"NVIDIA_VISIBLE_DEVICES": wanted})
    assert {bind.target: bind.read_only for bind in binds} == {
        "/usr/local/nvidia/lib64": True,
        "/usr/local/nvidia/lib64/state": False,
    }
    assert directories == ["/usr/local/nvidia/lib64"]


@pytest.mark.parametrize("environment", [{}, {"NVIDIA_VISIBLE_DEVICES": ""}, {"NVIDIA_VISIBLE_DEVICES": "void"}])
def test_no_driver_for_who_asks_for_none(driver: nvidia.Driver, environment: dict[str, str]) -> None:
    assert nvidia.give(driver, environment) == ([], [])


@pytest.mark.parametrize("wanted", ["GPU-1", "GPU-1,GPU-3", "0"])
def test_other_gpus_than_the_node_has_are_refused(driver: nvidia.Driver, wanted: str) -> None:
    with pytest.raises(PodFailure, match=f"NVIDIA_VISIBLE_DEVICES is {wanted}, the GPUs of this node are GPU-1,GPU-2"):
        nvidia.give(driver, {"NVIDIA_VISIBLE_DEVICES": wanted})


def library(path: Path, answer: int) -> None:
    """A libcuda.so.1 whose one function tells which it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = f"int which(void) {{ return {answer}; }}"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )


@pytest.mark.root
def test_the_loader_finds_the_driver_before_the_one_of_the_image_with_no_environment(
    tmp_path: Path, driver: nvidia.Driver
) -> None:
    require_containers()
    require("cc", package="gcc")
    library(driver.directory / "libcuda.so.1", 1)
    library(tmp_path / "node/image/libcuda.so.1", 2)
    multiarch = subprocess.run(["cc", "-print-multiarch"], capture_output=True, text=True, check=True).stdout.strip()
    pod: Json = {
        "metadata": {"name": "pod", "namespace": "team", "uid": "0123"},
        "spec": {
            "runtimeClassName": "nvidia",
            "volumes": [{"name": "image", "hostPath": {"path": "/image/libcuda.so.1", "type": "File"}}],
            "containers": [
                {
                    "name": "main",
                    "image": "cat",
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                    "volumeMounts": [{"name": "image", "mountPath": f"/usr/lib/{multiarch}/libcuda.so.1"}],
                }
            ],
        },
    }
    script = "import ctypes; print(ctypes.CDLL('libcuda.so.1').which())"
    image = Image(("/bin/cat",), paths=interpreter())
    with Kubelet(tmp_path / "node", Api(), {"cat": image}, driver) as kubelet:
        container = kubelet.start(pod).containers["main"]
        command = ["/usr/bin/env", "-i", sys.executable, "-c", script]
        status, printed = container.exec(command).communicate(timeout=PATIENCE)
        assert (status, printed) == (0, "1\n"), container.errors()
