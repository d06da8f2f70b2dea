"""The node's GPUs by NVML. What NVML does not give is None and costs nothing but its own series."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml
import structlog

from isolator_monitor.gpus import Gpu, GpuProcess, GpuReading

_log = structlog.get_logger()

T = TypeVar("T")

_GONE = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_PERHAPS_GONE = (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST)
_INITIALISE_AGAIN_SECONDS = 30.0
_SAMPLES_SECONDS = 2.0
"""How far back samples of processes are asked for: the newest of each counts, and NVML's windows are up to a second."""


class Nvml:
    """NVML, loaded when there is one, and initialised anew after it was lost."""

    def __init__(self) -> None:
        self._ready = False
        self._lost = False
        self._initialised = 0.0
        self._failures: Counter[str] = Counter()

    def read(self) -> GpuReading:
        """The GPUs of now."""
        if self._lost:
            self.close()
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready, self._initialised = True, time.monotonic()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            return GpuReading((), str(error), dict(self._failures))
        gpus = tuple(gpu for index in range(count) if (gpu := self._gpu(index)))
        return GpuReading(gpus, "", dict(self._failures))

    def close(self) -> None:
        """Let go of NVML."""
        ready, self._ready, self._lost = self._ready, False, False
        if ready:
            self._ask(pynvml.nvmlShutdown)

    def _gpu(self, index: int) -> Gpu | None:
        handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else self._ask(pynvml.nvmlDeviceGetUUID, handle)
        if uuid is None:
            return None
        memory = self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        utilization = self._ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        # The third form's entries are larger in the first drivers of 535 (nvml.h of CUDA 12.2.0 and 12.2.1).
        processes = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
        return Gpu(
            index=index,
            uuid=uuid,
            name=self._ask(pynvml.nvmlDeviceGetName, handle) or "",
            memory_total=None if memory is None else int(memory.total),
            memory_used=None if memory is None else int(memory.used),
            utilization=None if utilization is None else int(utilization.gpu),
            processes=None if processes is None else self._processes(handle, processes),
            mig=self._mig(handle),
        )

    def _processes(self, handle: Any, processes: list[Any]) -> tuple[GpuProcess, ...]:
        since = int((time.time() - _SAMPLES_SECONDS) * 1e6)
        samples: list[Any] | None = self._ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since, not_found=[])
        busy = None
        if samples is not None:
            busy = {sample.pid: sample.smUtil for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
        return tuple(
            GpuProcess(process.pid, process.usedGpuMemory, None if busy is None else busy.get(process.pid, 0))
            for process in processes
        )

    def _mig(self, handle: Any) -> tuple[str, ...]:
        mode = self._ask(pynvml.nvmlDeviceGetMigMode, handle)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found = []
        for index in range(self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            device = self._ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            uuid = None if device is None else self._ask(pynvml.nvmlDeviceGetUUID, device)
            if uuid is not None:
                found.append(uuid)
        return tuple(found)

    def _ask(self, call: Callable[..., T], *arguments: Any, not_found: T | None = None) -> T | None:
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return not_found
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                self._failures[f"{call.__name__}: {error}"] += 1
            age = time.monotonic() - self._initialised
            if error.value in _GONE or (error.value in _PERHAPS_GONE and age > _INITIALISE_AGAIN_SECONDS):
                self._lost = True
            return None


class PatientNvml:
    """NVML on a thread of its own: a driver that hangs costs the GPUs' series and nothing else."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[GpuReading] = queue.SimpleQueue()
        self._waiting_since: float | None = None
        self._said = ""
        threading.Thread(target=self._work, daemon=True).start()

    def read(self) -> GpuReading:
        """The GPUs of now; none with an error if NVML does not answer in time. It is asked again when it did."""
        since = self._waiting_since
        if since is None:
            since = self._waiting_since = time.monotonic()
            self._asked.put(None)
        try:
            reading = self._answers.get(timeout=self._patience)
            self._waiting_since = None
        except queue.Empty:
            waited = time.monotonic() - since
            reading = GpuReading((), f"NVML has not answered for {waited:.0f} s")
        if bool(reading.error) != bool(self._said):
            _log.warning("nvml_unavailable", error=reading.error) if reading.error else _log.info("nvml_available")
        self._said = reading.error
        return reading

    def _work(self) -> None:
        nvml = Nvml()
        while True:
            self._asked.get()
            self._answers.put(nvml.read())
