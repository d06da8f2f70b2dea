"""The node's GPUs by NVML. A value that NVML does not give is None and costs nothing but its own series."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml
import structlog

_log = structlog.get_logger()

T = TypeVar("T")


class Gpu(msgspec.Struct, frozen=True):
    """One physical GPU."""

    index: int
    uuid: str
    name: str
    memory_total: int | None
    """Bytes."""
    memory_used: int | None
    """Bytes, of all processes, reserved memory included."""
    utilization: int | None
    """Percent of time in which a kernel ran."""


class Nvml:
    """NVML, loaded when there is one; loaded and initialised anew after it failed."""

    def __init__(self) -> None:
        self._ready = False
        self._said = ""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of now; none where there is no NVML."""
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._failed(error)
            return ()
        self._said = ""
        return tuple(gpu for index in range(count) if (gpu := self._gpu(index)))

    def close(self) -> None:
        """Let go of NVML."""
        if self._ready:
            self._ready = False
            self._try(pynvml.nvmlShutdown)

    def _failed(self, error: Exception) -> None:
        self.close()
        if str(error) != self._said:
            self._said = str(error)
            _log.warning("nvml_unavailable", error=str(error))

    def _gpu(self, index: int) -> Gpu | None:
        handle = self._try(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = handle and self._try(pynvml.nvmlDeviceGetUUID, handle)
        if not uuid:
            return None
        memory = self._try(pynvml.nvmlDeviceGetMemoryInfo, handle)
        utilization = self._try(pynvml.nvmlDeviceGetUtilizationRates, handle)
        return Gpu(
            index=index,
            uuid=uuid,
            name=self._try(pynvml.nvmlDeviceGetName, handle) or "",
            memory_total=memory and int(memory.total),
            memory_used=memory and int(memory.used),
            utilization=utilization and int(utilization.gpu),
        )

    def _try(self, call: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            _log.debug("nvml_call_failed", call=call.__name__, error=str(error))
            return None
