"""A driver that fails, hangs, is restarted or knows little costs only what it does not tell."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from isolator_monitor import nvml
from isolator_monitor.gpus import Gpu, GpuProcess, GpuReading
from isolator_monitor.nvml import Nvml, PatientNvml

GIB = 1 << 30


class Driver:
    """Two cards, as nvidia-ml-py's functions show them. `errors` makes a function fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[str, int] = {}
        self.initialised = 0
        self.ready = False
        for name, answer in {
            "nvmlInit": self.init,
            "nvmlShutdown": self.shutdown,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"MIG-{handle[1]}" if isinstance(handle, tuple) else f"GPU-{handle}",
            "nvmlDeviceGetName": lambda _: "Tesla T4",
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=16 * GIB, used=2 * GIB),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=7),
            "nvmlDeviceGetComputeRunningProcesses_v2": lambda _: [
                SimpleNamespace(pid=70, usedGpuMemory=GIB),
                SimpleNamespace(pid=71, usedGpuMemory=None),
            ],
            "nvmlDeviceGetProcessUtilization": lambda _, since: [
                SimpleNamespace(pid=70, smUtil=9, timeStamp=since + 2),
                SimpleNamespace(pid=70, smUtil=5, timeStamp=since + 1),
            ],
            "nvmlDeviceGetMigMode": lambda handle: [int(handle == 1), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 2,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.mig_device,
        }.items():
            monkeypatch.setattr(pynvml, name, self.call(name, answer))

    def call(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if name != "nvmlInit" and not self.ready:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            if name in self.errors:
                raise pynvml.NVMLError(self.errors[name])
            return answer(*arguments)

        called.__name__ = name
        return called

    def init(self) -> None:
        self.initialised += 1
        self.ready = True

    def shutdown(self) -> None:
        self.ready = False

    def mig_device(self, handle: int, index: int) -> tuple[int, int]:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle, index


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


PROCESSES = (GpuProcess(70, GIB, 9), GpuProcess(71, None, 0))
CARD = Gpu(0, "GPU-0", "Tesla T4", 16 * GIB, 2 * GIB, 7, PROCESSES)


def test_all_that_a_driver_tells(driver: Driver) -> None:
    assert Nvml().read() == GpuReading(
        (CARD, Gpu(1, "GPU-1", "Tesla T4", 16 * GIB, 2 * GIB, 7, PROCESSES, ("MIG-0",))), "", {}
    )
    assert driver.initialised == 1


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_used"),
        ("nvmlDeviceGetUtilizationRates", "utilization"),
        ("nvmlDeviceGetComputeRunningProcesses_v2", "processes"),
    ],
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_a_call_that_fails_costs_its_value(driver: Driver, call: str, field: str, code: int) -> None:
    driver.errors[call] = code
    reading = Nvml().read()
    assert [getattr(gpu, field) for gpu in reading.gpus] == [None, None]
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-0", "GPU-1"]
    assert reading.error == ""
    # What a card does not support is no failure.
    assert bool(reading.failures) == (code == pynvml.NVML_ERROR_UNKNOWN)


@pytest.mark.parametrize(
    ("code", "percents"), [(pynvml.NVML_ERROR_NOT_FOUND, [0, 0]), (pynvml.NVML_ERROR_NOT_SUPPORTED, [None, None])]
)
def test_a_card_where_nothing_runs_is_idle_and_one_that_does_not_tell_is_not_known(
    driver: Driver, code: int, percents: list[int | None]
) -> None:
    driver.errors["nvmlDeviceGetProcessUtilization"] = code
    processes = Nvml().read().gpus[0].processes or ()
    assert [process.sm_percent for process in processes] == percents


def test_a_lost_card_costs_its_own_series(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", driver.call("nvmlDeviceGetHandleByIndex", lost))
    reading = Nvml().read()
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-1"]
    assert sum(reading.failures.values()) == 1


def test_a_restarted_driver_is_initialised_anew(driver: Driver) -> None:
    library = Nvml()
    assert len(library.read().gpus) == 2
    driver.ready = False
    assert library.read().error == "Uninitialized"
    assert len(library.read().gpus) == 2
    assert driver.initialised == 2


def test_without_a_driver(driver: Driver) -> None:
    driver.errors["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    library = Nvml()
    assert library.read() == GpuReading((), "Driver Not Loaded", {})
    del driver.errors["nvmlInit"]
    assert len(library.read().gpus) == 2


def test_an_unknown_error_that_stays_initialises_anew_now_and_then(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(nvml, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    driver.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNKNOWN
    library = Nvml()
    for _ in range(3):
        library.read()
    assert driver.initialised == 1
    now += 60
    library.read()
    library.read()
    assert driver.initialised == 2


def test_a_driver_that_hangs_is_not_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hang() -> int:
        assert go_on.wait(60)
        return 2

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", driver.call("nvmlDeviceGetCount", hang))
    patient = PatientNvml(0.05)
    for _ in range(3):
        reading = patient.read()
        assert reading.gpus == ()
        assert "NVML has not answered for" in reading.error
    go_on.set()
    healed = PatientNvml(30)
    assert len(healed.read().gpus) == 2
    patient._patience = 30
    assert len(patient.read().gpus) == 2
